"""A recording written out as files."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.recorder import Recorder
from topocheck.host.base import Answer, Host, HostError
from topocheck.host.live.backend import LiveBackend
from topocheck.host.recording.export import export_tree
from topocheck.host.recording.snapshot import SnapshotError
from topocheck.model.base import Reason

REAL = "/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0"
ALIAS = "/sys/bus/pci/devices/0000:3b:00.0"
ANSWERS: dict[str, Answer] = {
    "list:/sys/bus/pci/devices": ["0000:3b:00.0"],
    f"realpath:{ALIAS}": REAL,
    f"read:{ALIAS}/vendor": b"0x10de\n",
    f"read:{ALIAS}/config|64": b"\xde\x10",
    f"read:{ALIAS}/config|4096": b"\xde\x10\x30\x23",
    f"readlink:{ALIAS}/driver": "../../../../bus/pci/drivers/nvidia",
    f"read:{ALIAS}/absent": HostError(Reason.ABSENT, "ENOENT"),
    "lines:/proc/self/status|Cap": ["CapEff: 0"],
    "nvml:DeviceGetCount": 2,
}


def test_tree(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    assert export_tree(ANSWERS, str(root)) == 2
    assert (root / REAL[1:] / "vendor").read_bytes() == b"0x10de\n"
    assert (root / ALIAS[1:] / "config").read_bytes() == b"\xde\x10\x30\x23", "the longest reading"
    assert os.path.realpath(root / ALIAS[1:]) == f"{root}{REAL}"
    assert os.readlink(root / REAL[1:] / "driver") == "../../../../bus/pci/drivers/nvidia"
    assert not (root / "proc").exists()


def test_tree_answers_as_the_recording_did(tmp_path: Path) -> None:
    export_tree(ANSWERS, str(tmp_path / "tree"))
    host = Host(LiveBackend(str(tmp_path / "tree")))
    assert host.realpath(ALIAS) == REAL
    assert host.read_text(f"{ALIAS}/vendor") == "0x10de\n"
    assert host.listdir("/sys/bus/pci/devices") == ["0000:3b:00.0"]
    assert host.readlink(f"{ALIAS}/driver") == "../../../../bus/pci/drivers/nvidia"


def test_ids_that_only_the_modalias_gives(tmp_path: Path) -> None:
    """The kernel prints both from the same numbers: drivers/pci/pci-sysfs.c."""
    modalias = b"pci:v000010DEd00002330sv000010DEsd000016C1bc03sc02i00\n"
    export_tree({f"realpath:{ALIAS}": REAL, f"read:{ALIAS}/modalias": modalias}, str(tmp_path / "tree"))
    folder = tmp_path / "tree" / REAL[1:]
    expected = {"vendor": "0x10de", "device": "0x2330", "subsystem_vendor": "0x10de", "subsystem_device": "0x16c1"}
    assert {n: (folder / n).read_text().strip() for n in expected} == expected
    assert (folder / "class").read_text() == "0x030200\n"


@pytest.mark.parametrize(
    "answers",
    [
        {"read:/../escape": b""},
        {"read:/a/../../escape": b""},
        {"read:relative": b""},
        {"read:/nul\0": b""},
        {"list:/a/..": []},
        {"realpath:/a": "/../escape"},
        {"readlink:/a": "../escape"},
        {"readlink:/a/b": "../../escape"},
        {"readlink:/a/b": "c/../../../escape"},
        {"readlink:/a": "a", "read:/a/x": b""},
        {"readlink:/a": "/b", "readlink:/b": "/a", "read:/a/x": b""},
        {"read:/a": b"", "read:/a/b": b""},
        {"read:/a": b"", "list:/a": []},
        {"read:/" + "x" * 300: b""},
    ],
)
def test_hostile_answers(tmp_path: Path, answers: dict[str, Answer]) -> None:
    root = tmp_path / "in" / "tree"
    with pytest.raises(SnapshotError):
        export_tree(answers, str(root))
    assert not (tmp_path / "escape").exists()
    assert not (tmp_path / "in" / "escape").exists()


def test_absolute_link_stays_inside(tmp_path: Path) -> None:
    export_tree({"readlink:/a": "/etc/passwd"}, str(tmp_path / "tree"))
    assert os.readlink(tmp_path / "tree" / "a") == "etc/passwd"


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    export_tree({"readlink:/a": "/b", "read:/a/x": b"1", "read:/b/y": b"2"}, str(tmp_path / "tree"))
    assert sorted(os.listdir(tmp_path / "tree" / "b")) == ["x", "y"]


def test_folder_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("keep me")
    with pytest.raises(SnapshotError, match="not empty"):
        export_tree(ANSWERS, str(tmp_path))
    assert os.listdir(tmp_path) == ["mine"]


PARTS = st.lists(st.sampled_from(["a", "b", "..", ".", "", "c"]), max_size=5).map("/".join)


@given(
    st.dictionaries(
        st.sampled_from(["read", "list", "readlink", "realpath"]).flatmap(lambda k: PARTS.map(lambda p: f"{k}:/{p}")),
        PARTS,
        max_size=6,
    )
)
def test_no_recording_gets_out(tmp_path_factory: pytest.TempPathFactory, answers: dict[str, str]) -> None:
    top = tmp_path_factory.mktemp("top")
    with contextlib.suppress(SnapshotError):
        export_tree(answers, str(top / "tree"))
    assert set(os.listdir(top)) <= {"tree"}
    for folder, folders, files in os.walk(top / "tree"):
        for name in folders + files:
            assert os.path.realpath(os.path.join(folder, name)).startswith(f"{top}/tree")


def test_links_of_this_machine(tmp_path: Path) -> None:
    """The real sysfs of the machine that runs the tests, as far as it has network interfaces."""
    recorder = Recorder(LiveBackend())
    host = Host(recorder)
    real = {}
    for name in host.listdir("/sys/class/net"):
        path = f"/sys/class/net/{name}"
        try:
            real[path] = host.realpath(path)
            host.read_bytes(f"{path}/mtu")
            host.readlink(f"{path}/subsystem")
        except HostError:
            continue
    export_tree(recorder.answers, str(tmp_path / "tree"))
    captured = Host(LiveBackend(str(tmp_path / "tree")))
    assert {p: captured.realpath(p) for p in real} == real
