"""`topocheck diff` on two files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.commands import Ran, run
from tests.cli.test_fleet import report
from tests.compare.facts import device, gpu
from tests.support.snapshots import write_snapshot
from topocheck.cli.diff import diff


def _diff(*args: object) -> Ran:
    return run(diff, *args)


def test_diff_is_0_or_1(tmp_path: Path) -> None:
    a = report(tmp_path / "a.json", "a", gpus=[gpu("0000:18:00.0", vbios="1")], pci=[device("0000:18:00.0")])
    b = report(tmp_path / "b.json", "b", gpus=[gpu("0000:18:00.0", vbios="2")], pci=[device("0000:18:00.0")])
    assert _diff(a, a).code == 0
    ran = _diff(a, b)
    assert ran.code == 1
    assert "GPU 0 0000:18:00.0: VBIOS 1 -> 2" in ran.out
    assert "1 -> 2" in ran.out
    found = json.loads(_diff(a, b, "--format", "json").out)
    assert [(d["section"], d["path"]) for d in found["differences"]] == [
        ("firmware", "gpus[?address=='0000:18:00.0'].vbios")
    ]
    assert _diff(a, tmp_path / "none.json").code == 2


def test_what_only_root_sees_is_no_difference(tmp_path: Path) -> None:
    root = write_snapshot(tmp_path / "root", "l40s_x8", system={"root": True})
    user = write_snapshot(tmp_path / "user", "l40s_x8", system={"root": False})
    for a, b in ((root, user), (user, root)):
        ran = _diff(a, b, "--width", "900")
        assert ran.code == 3
        assert ran.out.startswith("0 differences between")
        assert ran.out.count("not comparable") == 1
        assert f"not known of {user}" in " ".join(ran.out.split())
        assert "(denied)" in ran.out
        assert "max payload" in ran.out


IBSTAT = """\
CA 'mlx5_0'
\tCA type: MT4129
\tNumber of ports: 1
\tFirmware version: 28.39.1002
\tHardware version: 0
\tNode GUID: 0xa088c20300e6f2aa
\tSystem image GUID: 0xa088c20300e6f2aa
\tPort 1:
\t\tState: Active
\t\tPhysical state: LinkUp
\t\tRate: 400
\t\tBase lid: 12
\t\tLMC: 0
\t\tSM lid: 1
\t\tCapability mask: 0xa741e848
\t\tPort GUID: 0xa088c20300e6f2aa
\t\tLink layer: InfiniBand
"""

LSCPU = """\
Architecture:          x86_64
CPU op-mode(s):        32-bit, 64-bit
Byte Order:            Little Endian
CPU(s):                96
On-line CPU(s) list:   0-95
Socket(s):             2
NUMA node(s):          2
Vendor ID:             GenuineIntel
Model name:            Intel(R) Xeon(R) Platinum 8360Y CPU @ 2.40GHz
NUMA node0 CPU(s):     0-47
NUMA node1 CPU(s):     48-95
"""


@pytest.mark.parametrize(("text", "code", "number"), [(IBSTAT, 3, "0 differences"), (LSCPU, 1, "")])
def test_what_a_text_cannot_know_is_not_comparable(tmp_path: Path, text: str, code: int, number: str) -> None:
    whole = write_snapshot(tmp_path / "whole", "hgx_h100_cx7")
    part = tmp_path / "part.txt"
    part.write_text(text)
    for a, b in ((whole, part), (part, whole)):
        ran = _diff(a, b, "--width", "900")
        assert ran.code == code
        assert ran.out.startswith(number)
        assert "is gone" not in ran.out
        assert "is new" not in ran.out
        assert "In a job over these nodes" not in ran.out
        words = " ".join(ran.out.split())
        assert words.count("not known of") == 1
        assert f"not known of {part} (not recorded): kernel modules, GPUs," in words
        found = json.loads(_diff(a, b, "--format", "json").out)["differences"]
        gpus = [d for d in found if d["field"] == "gpu"]
        assert len(gpus) == 8
        assert {next(iter(d["unknown"])) for d in gpus} == {"value" if b == part else "majority"}


def test_diff_of_one_node_tells_a_replaced_gpu(tmp_path: Path) -> None:
    def at(name: str, uuid: str) -> Path:
        card = gpu("0000:18:00.0", uuid=uuid)
        return report(tmp_path / name, "a", gpus=[card], pci=[device("0000:18:00.0")])

    a, b = at("a.json", "GPU-1"), at("b.json", "GPU-2")
    assert _diff(a, b).code == 0
    assert "GPU-1 -> GPU-2" in _diff(a, b, "--same-node").out


def test_a_size_beyond_all_memory_is_no_report(tmp_path: Path) -> None:
    good = report(tmp_path / "a.json", "a")
    report(tmp_path / "b.json", "b", host={"memory_total_bytes": 1 << 60})
    broken = tmp_path / "b.json"
    broken.write_bytes(broken.read_bytes().replace(str(1 << 60).encode(), b"1" + b"0" * 400))
    ran = run(diff, good, broken)
    assert ran.code == 2
    assert "not a topocheck report" in ran.error


def test_a_host_name_cannot_forge_a_line(tmp_path: Path) -> None:
    plain = report(tmp_path / "a.json", "a")
    evil = report(tmp_path / "b.json", "\x1b[31mevil\n\u202eab")
    out = run(diff, plain, evil).out
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert out.count("\n") == 1


def test_a_device_that_came_or_went(tmp_path: Path) -> None:
    card = gpu("0000:18:00.0")
    one = report(tmp_path / "1.json", "n", gpus=[card], pci=[device("0000:18:00.0")])
    none = report(tmp_path / "0.json", "n")
    assert "is new" in run(diff, none, one).out
    assert "is gone" in run(diff, one, none).out
