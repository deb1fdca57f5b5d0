"""A minute of the fuzzer, the same cases every time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fuzz import targets
from tests.fuzz.runner import Fuzzer, run_cases

pytestmark = pytest.mark.slow

CASES = 50
SEED = "ci"


@pytest.fixture(scope="module")
def fuzzer() -> Iterator[Fuzzer]:
    with Fuzzer(small=False) as one:
        yield one


@pytest.mark.parametrize("target", sorted(targets.every()))
def test_nothing_is_found(fuzzer: Fuzzer, target: str) -> None:
    run_cases(fuzzer, target, SEED, CASES)
    tally = fuzzer.tallies[target]
    found = {name: repro.about for name, repro in tally.found.items()}
    assert not found, f"python -m tests.fuzz --cases {CASES} --seed {SEED} --target {target} --keep FOLDER"
    assert tally.cases == CASES
    assert set(tally.codes) & {"0", "1", "3"}, "every case is refused: nothing is tested"
