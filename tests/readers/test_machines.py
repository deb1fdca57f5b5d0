"""Archives and folders of several machines: each apart in a fleet, refused where one machine is asked for."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.cli.commands import run
from tests.machines.builder import cached
from tests.readers import texts
from tests.readers.facts import read
from topocheck.cli.diff import diff
from topocheck.cli.fleet import fleet
from topocheck.cli.report import report
from topocheck.model.base import InputError, known
from topocheck.pipeline import read_node
from topocheck.readers.archive import MAX_UNPACKED
from topocheck.readers.files import read_data, read_files

H100, L40S = (read_node(cached(m).host()) for m in ("hgx_h100_cx7", "l40s_x8"))
RULE = "_" * 44
BUG = "{rule}\n\nStart of NVIDIA bug report log file.  Please include this file\n\n{rule}\n\n"
BUG += "/usr/bin/nvidia-smi --query\n\n{q}\n"


def bug_report(n: object) -> bytes:
    return gzip.compress(BUG.format(rule=RULE, q=texts.smi_query(n.nvml)).encode())  # type: ignore[attr-defined]


def tar(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, body in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(body)
            archive.addfile(info, io.BytesIO(body))
    return out.getvalue()


def zipped(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body in members.items():
            archive.writestr(name, body)
    return out.getvalue()


MUST_GATHER = {
    "must-gather/gpu_nodes.status": b"NAME STATUS\n",
    "must-gather/nvidia-bug-report_node-a.log.gz": bug_report(H100),
    "must-gather/nvidia-bug-report_node-b.log.gz": bug_report(L40S),
}
"""As the must-gather of NVIDIA's GPU operator names them."""
FOLDERS = {
    "run/node-a/q.txt": texts.smi_query(H100.nvml).encode(),
    "run/node-a/numa.txt": texts.numactl(H100.numa).encode(),
    "run/node-b/q.txt": texts.smi_query(L40S.nvml).encode(),
    "run/README.md": b"hello\n",
}
ALIKE = {"node-a.txt": texts.smi_query(H100.nvml).encode(), "node-b.txt": texts.smi_query(L40S.nvml).encode()}


def put(folder: Path, members: dict[str, bytes]) -> Path:
    for name, body in members.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
    return folder


@pytest.mark.parametrize("members", [MUST_GATHER, FOLDERS, ALIKE], ids=["must-gather", "folders", "alike"])
@pytest.mark.parametrize("form", ["tar.gz", "zip", "folder"])
def test_a_fleet_of_what_was_collected(tmp_path: Path, members: dict[str, bytes], form: str) -> None:
    path = tmp_path / f"x.{form}"
    if form == "folder":
        put(path, members)
    else:
        path.write_bytes(tar(members) if form == "tar.gz" else zipped(members))
    ran = run(fleet, path, "--format", "json")
    assert json.loads(ran.out)["fleet"]["unreadable_files"] == []
    text = run(fleet, path).out
    assert ": 2 nodes" in text.splitlines()[0]


def test_several_machines_are_not_one(tmp_path: Path) -> None:
    path = tmp_path / "must-gather.tar.gz"
    path.write_bytes(tar(MUST_GATHER))
    ran = run(report, "--from", path)
    assert ran.code == 2
    assert "holds 2 machines" in ran.error
    assert "topocheck fleet" in ran.error
    assert run(diff, path, path).code == 2


def test_an_archive_in_an_archive_is_one_machine() -> None:
    inner = tar({"sos-x/sos_commands/numa/numactl_--hardware": texts.numactl(H100.numa).encode()})
    numa = read(tar({"upload/sosreport-x.tar.gz": inner, "upload/sosreport-x.tar.gz.md5": b"0\n"})).numa
    assert known(numa.nodes)
    assert len(numa.nodes) == 2


def test_names_of_sosreport_are_commands() -> None:
    """The journal of an earlier start is left out, by the command that its file is named after."""
    log = b"[ 9.0] NVRM: Xid (PCI:0000:01:00): %s, x\n"
    members = {
        "sos-x/sos_commands/logs/journalctl_--no-pager_--boot_-1": log % b"79",
        "sos-x/sos_commands/kernel/dmesg": log % b"31",
        "sos-x/var/log/messages": b"Nov 10 11:00:00 n kernel: " + log % b"48",
    }
    assert read(tar(members)).system.kernel_log == ("NVRM: Xid (PCI:0000:01:00): 31",)


def test_texts_beside_several_machines_are_named(tmp_path: Path) -> None:
    folder = put(tmp_path, {**MUST_GATHER, "must-gather/numa.txt": texts.numactl(H100.numa).encode()})
    ran = run(fleet, folder, "--format", "json")
    assert "put the files of each machine in a folder of its own" in ran.out


def test_folders_for_diff_and_report(tmp_path: Path) -> None:
    put(tmp_path, FOLDERS)
    same = run(diff, tmp_path / "run/node-a", tmp_path / "run/node-a")
    assert same.code == 0
    ran = run(diff, tmp_path / "run/node-a", tmp_path / "run/node-b")
    assert ran.code == 1
    one = run(report, "--from", tmp_path / "run/node-a")
    assert one.code == 0
    assert "node-a: numactl -H, nvidia-smi -q" in one.out


@pytest.mark.parametrize("folder", ["/", "/proc", "/sys/class"])
def test_this_machines_own_folders_are_refused(folder: str) -> None:
    with pytest.raises(InputError, match="own files"):
        read_files([Path(folder)])


def test_zip_leads_nowhere_and_is_bounded() -> None:
    with pytest.raises(InputError, match="understood"):
        read_data("x.zip", zipped({"../../etc/cron.d/x": texts.numactl(H100.numa).encode()}))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for n in range(MAX_UNPACKED // (16 << 20) + 1):
            archive.writestr(f"{n}.txt", bytes(16 << 20))
    with pytest.raises(InputError, match="larger than"):
        read_data("x.zip", out.getvalue())


def test_one_damaged_member_costs_itself() -> None:
    members = {"a/numa.txt": texts.numactl(H100.numa).encode(), "a/topo.xml": b'<topology><object type="Machine"><x'}
    node = read(tar(members))
    assert known(node.numa.nodes)
    assert node.made_from is not None
    assert any("not read" in f and "XML" in f for f in node.made_from.files[0].formats)
