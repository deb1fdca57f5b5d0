"""Policies, through `check --policy`, the variable and `fleet`."""

from __future__ import annotations

import functools
import os
import tomllib
from random import Random
from typing import Any

from tests.fuzz import commands, corpus, hostile, texts, trees
from tests.fuzz.case import Case, command

SMALL = ("laptop", "h100_x2_vm", "gh200", "l4_x2_across_sockets", "h17_gid_link_local", "a100_x4")


@functools.cache
def _thresholds() -> dict[str, tuple[str, ...]]:
    from topocheck.checks import threshold_names

    return {i: tuple(n) for i, n in threshold_names().items()}


EXAMPLE = """
strict = false
require_probes = ["pci", "nvml"]
[checks."limits.remove-ipc"]
enabled = false
[checks."pcie.replays"]
severity = "note"
thresholds = { count = 5000 }
[checks."p2p.acs-redirect"]
require = true
[checks."pcie.*"]
severity = "warn"
[expect]
gpu_model = "H100 80GB"
gpu_count = 8
nic_count = 8
nic_rate_gbit_s = 400.0
driver_version = "550.54"
p2p_everywhere = true
gdr_pairs = 8
pcie_gen = 5
pcie_width = 16
nvlinks_per_gpu = 18
min_p2p_gb_s = 300.5
"""


def make(rng: Random) -> Case:
    text = _text(rng)
    name = rng.choice(SMALL)
    files = {
        "p.toml": hostile.raw(text),
        "in.snap": corpus.recording(name),
    }
    argv = commands.check(rng, "in.snap")
    env = {}
    if rng.random() < 0.2:
        env["TOPOCHECK_POLICY"] = os.fsencode("p.toml")
    elif rng.random() < 0.2:
        argv = ["fleet", "in.snap", "--processes", "1", "--policy", "p.toml"]
    else:
        argv += ["--policy", "p.toml"]
    return Case(argv=command(*argv), files=files, env=env)


def _text(rng: Random) -> str:
    pick = rng.randrange(7)
    if pick < 2:
        return texts.lines(rng, EXAMPLE)
    if pick == 2:
        return rng.choice(
            (hostile.text(rng), _dotted(rng), "[" * 3000, "a = " + "[" * 3000, "a = {b = " * 500, '"""' + "x" * 1000)
        )
    tree: dict[str, Any] = tomllib.loads(EXAMPLE)
    known = _thresholds()
    for check in rng.sample(sorted(known), 8):
        rule = {
            "severity": rng.choice(("note", "warn", "fail")),
            "require": rng.random() < 0.5,
            "enabled": rng.random() < 0.8,
        }
        tree["checks"][check] = {**rule, "thresholds": {n: rng.choice((0, 1, 0.5, 100, 1e18)) for n in known[check]}}
    tree = trees.retouched(rng, tree, 3) if pick > 3 else trees.mutated(rng, tree, 2)
    return trees.to_toml(tree) if isinstance(tree, dict) else str(tree)


def _dotted(rng: Random) -> str:
    depth = rng.choice((10, 300, 1200))
    return ".".join(rng.choice("ab") for _ in range(depth)) + " = 1\n" + "[" + ".".join("c" * depth) + "]\n"
