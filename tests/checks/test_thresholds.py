"""Thresholds: those that checks ask for are those that they declare, and a policy may set no others."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from topocheck import checks
from topocheck.checks import threshold_names
from topocheck.checks.rdma import devices as rdma_devices
from topocheck.policy.load import PolicyError, parse


def calls() -> list[tuple[str, str | None]]:
    """Return (id, name) of every `.threshold(id, name, default)` in the checks; None for a name that is computed."""
    out = []
    for path in sorted(Path(checks.__file__).parent.rglob("*.py")):
        if path.name == "registry.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "threshold":
                id_, name = node.args[:2]
                assert isinstance(id_, ast.Constant), f"{path.name}:{node.lineno}: the id is a plain text"
                out.append((str(id_.value), str(name.value) if isinstance(name, ast.Constant) else None))
    return out


def test_every_threshold_asked_for_is_declared_and_the_other_way_round() -> None:
    declared = {(id_, name) for id_, names in threshold_names().items() for name in names}
    asked = {(id_, name) for id_, name in calls() if name is not None}
    computed = {id_ for id_, name in calls() if name is None}
    assert computed == {"rdma.counters"}
    asked |= {("rdma.counters", name) for name in rdma_devices._WATCHED}  # the counters it looks at
    assert asked == declared


def policy(text: str) -> None:
    parse(text.encode(), "p.toml", threshold_names())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[checks.'pcie.replays']\nthresholds = { counts = 5 }", "did you mean count?"),
        ("[checks.'limits.nofile']\nthresholds = { zzz = 5 }", "it has note_below, warn_below"),
        ("[checks.'pcie.link-width']\nthresholds = { count = 5 }", "it has none"),
        ("[checks.'limits.*']\nthresholds = { correctable = 5 }", "checks.'limits.*'.thresholds"),
    ],
)
def test_a_name_that_the_check_does_not_have_is_refused(text: str, says: str) -> None:
    with pytest.raises(PolicyError, match="there is no ") as e:
        policy(text)
    assert says in str(e.value)
    assert str(e.value).startswith("policy p.toml: ")
    assert "\n" not in str(e.value)


def test_names_that_exist_are_taken() -> None:
    policy("[checks.'pcie.replays']\nthresholds = { count = 5000 }")
    policy("[checks.'limits.*']\nthresholds = { warn_below = 512 }")
    policy("[checks.'rdma.counters']\nthresholds = { link_downed = 2, packet_seq_err = 10 }")
