"""Runs targets for a time or for a number of cases, and sums up."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec

from tests.fuzz import oracles, targets
from tests.fuzz.case import Case, Finding, Outcome, Repro
from tests.fuzz.client import Server
from tests.fuzz.minimise import minimise

TWICE = 8
"""One case in so many is run a second time, in a process that orders its sets differently."""


class Tally(msgspec.Struct, kw_only=True):
    """What became of one target: cases, findings by kind, and the distinct ones with a case each.

    Attributes:
        slowest_s: most CPU time that a case took; `slowest` is its seed.
    """

    cases: int = 0
    kinds: dict[str, int] = {}
    codes: dict[str, int] = {}
    found: dict[str, Repro] = {}
    slowest_s: float = 0.0
    slowest: str = ""
    largest_bytes: int = 0

    def add(self, other: Tally) -> None:
        """Take in another tally of the same target."""
        self.cases += other.cases
        for mine, theirs in ((self.kinds, other.kinds), (self.codes, other.codes)):
            for key, n in theirs.items():
                mine[key] = mine.get(key, 0) + n
        for name, repro in other.found.items():
            self.found.setdefault(name, repro)
        if other.slowest_s > self.slowest_s:
            self.slowest_s, self.slowest = other.slowest_s, other.slowest
        self.largest_bytes = max(self.largest_bytes, other.largest_bytes)


class Fuzzer:
    """One stream of cases: a server, and a second one for what is run twice."""

    def __init__(self, *, tell: Callable[[str], None] = print, small: bool = True) -> None:
        self._tell = tell
        self._small = small
        self._one, self._two = Server(1), Server(2)
        self.tallies: dict[str, Tally] = {}

    def __enter__(self) -> Fuzzer:
        return self

    def __exit__(self, *_: object) -> None:
        for server in (self._one, self._two):
            server.__exit__(None, None, None)

    def one(self, target: str, make: targets.Make, seed: str) -> None:
        """Make and run the case that follows from a seed."""
        rng = Random(f"{target} {seed}")
        try:
            case = make(rng)
        except Exception:  # noqa: BLE001 - whatever it is, it is told with the seed that shows it
            raise RuntimeError(f"target {target}, seed {seed}: {traceback.format_exc()}") from None
        tally = self.tallies.setdefault(target, Tally())
        twice = rng.randrange(TWICE) == 0
        outcome = self._one.run(case)
        tally.cases += 1
        code = str(outcome.code)
        tally.codes[code] = tally.codes.get(code, 0) + 1
        if outcome.cpu_s > tally.slowest_s:
            tally.slowest_s, tally.slowest = outcome.cpu_s, seed
        tally.largest_bytes = max(tally.largest_bytes, outcome.grown_bytes)
        for finding in self._judged(case, outcome, twice):
            tally.kinds[finding.kind] = tally.kinds.get(finding.kind, 0) + 1
            name = f"{finding.kind}: {finding.key}"
            if name not in tally.found:
                tally.found[name] = self._kept(target, seed, case, finding)

    def check(self, case: Case, *, twice: bool = True) -> list[Finding]:
        """Run a case; return what is wrong with it."""
        return self._judged(case, self._one.run(case), twice)

    def _judged(self, case: Case, outcome: Outcome, twice: bool) -> list[Finding]:
        found = oracles.judge(case, outcome)
        if twice and not outcome.hung:
            found += oracles.differ(case, outcome, self._two.run(case))
        return found

    def _kept(self, target: str, seed: str, case: Case, finding: Finding) -> Repro:
        self._tell(f"{target} {seed}: {finding.kind}: {finding.key}: {case.shown()[:200]}")
        if self._small and finding.kind not in ("hang", "memory"):
            twice = finding.kind == "order"
            case = minimise(case, finding, lambda c: self.check(c, twice=twice))
        return Repro(about=case.shown(), target=target, seed=seed, finding=finding, case=case)


class Length(msgspec.Struct, frozen=True, kw_only=True):
    """How long a stream runs: so many cases of each target, or, where that is 0, so many seconds."""

    seconds: float
    cases: int = 0


def stream(names: list[str], seed: str, length: Length, small: bool) -> dict[str, Tally]:
    """Run targets; say on standard error what is found."""
    with Fuzzer(tell=lambda text: print(text, file=sys.stderr, flush=True), small=small) as fuzzer:
        if length.cases:
            for name in names:
                run_cases(fuzzer, name, seed, length.cases)
        else:
            run_for(fuzzer, names, seed, length.seconds)
        return fuzzer.tallies


def run_for(fuzzer: Fuzzer, names: list[str], seed: str, seconds: float) -> None:
    """Run targets in turn until the time is up."""
    every = targets.every()
    until = time.monotonic() + seconds
    number = 0
    while time.monotonic() < until:
        for name in names:
            if time.monotonic() >= until:
                break
            try:
                fuzzer.one(name, every[name], f"{seed}.{number}")
            except RuntimeError as e:  # a run of hours does not end because one case could not be made
                print(e, file=sys.stderr)
        number += 1


def run_cases(fuzzer: Fuzzer, name: str, seed: str, cases: int) -> None:
    """Run a number of cases of a target."""
    make = targets.every()[name]
    for number in range(cases):
        fuzzer.one(name, make, f"{seed}.{number}")


def replay(path: Path) -> list[Finding]:
    """Run a kept case again; return what is found wrong."""
    repro = msgspec.json.decode(path.read_bytes(), type=Repro)
    with Fuzzer(small=False) as fuzzer:
        return fuzzer.check(repro.case)


def keep(folder: Path, tallies: dict[str, Tally]) -> None:
    """Write each distinct finding to a file."""
    folder.mkdir(parents=True, exist_ok=True)
    for tally in tallies.values():
        for name, repro in tally.found.items():
            kind = name.partition(":")[0].replace(" ", "-")
            path = folder / f"{kind}-{repro.case.name()}.json"
            path.write_bytes(msgspec.json.format(msgspec.json.encode(repro), indent=1))


def table(tallies: dict[str, Tally]) -> str:
    """Return the table of what was run and found."""
    head = ["target", "cases", *oracles.KINDS, "slowest s (seed)", "most MiB", "exit codes"]
    rows = [head]
    total = Tally()
    for name in sorted(tallies):
        rows.append(_row(name, tallies[name]))
        total.add(tallies[name])
    rows.append(_row("all", total))
    widths = [max(len(r[i]) for r in rows) for i in range(len(head))]
    return "\n".join(
        "  ".join(c.rjust(w) if i else c.ljust(w) for i, (c, w) in enumerate(zip(r, widths, strict=True))) for r in rows
    )


def _row(name: str, tally: Tally) -> list[str]:
    codes = " ".join(f"{k}:{n}" for k, n in sorted(tally.codes.items()))
    counts = [str(tally.kinds.get(k, 0)) for k in oracles.KINDS]
    return [
        name,
        str(tally.cases),
        *counts,
        f"{tally.slowest_s:.1f} ({tally.slowest})",
        str(tally.largest_bytes >> 20),
        codes,
    ]
