"""What is saved of files, and printed of them: no more than of a recorded machine, with identifiers replaced."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

from tests.cli.commands import run
from tests.readers import texts, texts_network, texts_system
from tests.readers.test_every_format import node_of
from tests.readers.test_files import LSPCI
from topocheck.cli.placement import placement
from topocheck.cli.report import report
from topocheck.cli.snapshot import save

SECRETS = ("hunter2", "AKIA0123456789", "alice", "topsecret", "de:ad:be:ef:00:01", "12-34-56-78-9a-bc-de-f0")
NAMES = ("gpu-node-17", "cluster.example", "GPU-11112222-3333-4444-5555-666677778888", "192.0.2.77", "1655123456789")
ENV = (
    "PATH=/home/alice/bin\nHOME=/home/alice\nAWS_SECRET_ACCESS_KEY=AKIA0123456789\nPASSWORD=hunter2\n"
    "NCCL_DEBUG=INFO\nNCCL_SOCKET_IFNAME=eth0\nHTTPS_PROXY=http://alice:hunter2@proxy\n"
)
MORE = (
    "$ cat /proc/cmdline\nBOOT_IMAGE=/vmlinuz root=UUID=topsecret ro iommu=pt password=hunter2\n"
    "$ uname -a\nLinux gpu-node-17 6.8.0-31-generic #31-Ubuntu SMP Sat Apr 20 00:40:06 UTC 2024 x86_64 GNU/Linux\n"
    "$ ip addr\n2: eth0: <BROADCAST,UP> mtu 9000 qdisc mq state UP group default qlen 1000\n"
    "    link/ether de:ad:be:ef:00:01 brd ff:ff:ff:ff:ff:ff\n    inet 192.0.2.77/24 scope global eth0\n"
    "$ nvidia-smi -q\n==============NVSMI LOG==============\n\nDriver Version      : 580.65.06\n"
    "Attached GPUs       : 1\n"
    "GPU 00000000:01:00.0\n    Product Name      : NVIDIA H100 80GB HBM3\n    Serial Number     : 1655123456789\n"
    "    GPU UUID          : GPU-11112222-3333-4444-5555-666677778888\n    Processes\n        Process ID    : 4711\n"
    "            Name      : /home/alice/topsecret/train.py\n"
    "$ dmesg\n[    1.0] NVRM: Xid (PCI:0000:01:00): 31, pid=1, name=topsecret\n[    2.0] audit: user alice hunter2\n"
)
LISTED = LSPCI.replace(
    "\tCapabilities: [100 v1] Advanced", "\tCapabilities: [148 v1] Device Serial Number 12-34-56-78-9a-bc-de-f0\n"
    "\tCapabilities: [100 v1] Advanced",
)  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("alice-upload")
    out = []
    for name, text in (("env.txt", ENV), ("more.txt", MORE), ("lspci.txt", LISTED)):
        (folder / name).write_text(text)
        out += ["--from", str(folder / name)]
    return out


def test_a_saved_snapshot_has_no_identifiers(files: list[str], tmp_path: Path) -> None:
    path = tmp_path / "x.snap"
    ran = run(save, path, *files)
    assert ran.code == 0
    text = gzip.decompress(path.read_bytes()).decode()
    assert [s for s in (*SECRETS, *NAMES, "more.txt", "alice-upload") if s in text] == []
    assert "NCCL_DEBUG" in text
    again = run(report, "--from", path, "--format", "json")
    assert [s for s in (*SECRETS, *NAMES) if s in again.out] == []


def test_with_identifiers_kept_secrets_are_not(files: list[str], tmp_path: Path) -> None:
    path = tmp_path / "x.snap"
    assert run(save, path, "--keep-identifiers", *files).code == 0
    text = gzip.decompress(path.read_bytes()).decode()
    assert [s for s in ("hunter2", "AKIA0123456789", "topsecret", "train.py") if s in text] == []
    assert "gpu-node-17" in text


def test_json_of_files_holds_what_that_of_a_recording_does(files: list[str], tmp_path: Path) -> None:
    """Names of hosts and devices are a report's; secrets are in none, nor any field that a recording's lacks."""
    out = run(report, *files, "--format", "json").out
    assert [s for s in ("hunter2", "AKIA0123456789", "topsecret", "train.py", "alice") if s in out] == []
    path = tmp_path / "x.snap"
    assert run(save, path, "--keep-identifiers", *files).code == 0
    saved = run(report, "--from", path, "--format", "json").out
    assert _names(json.loads(out)) == _names(json.loads(saved))


def _names(value: object, at: str = "") -> set[str]:
    if isinstance(value, dict):
        return {x for k, v in value.items() if at != ".missing" for x in (f"{at}.{k}", *_names(v, f"{at}.{k}"))}
    if isinstance(value, list):
        return {x for v in value for x in _names(v, at)}
    return set()


@pytest.mark.parametrize("machine", ["hgx_h100_cx7", "l40s_x8"])
def test_every_format_saved_keeps_no_uuid_and_no_guid(machine: str, tmp_path: Path) -> None:
    n = node_of(machine)
    written = {
        "q": texts.smi_query(n.nvml), "x": texts.smi_xml(n.nvml), "l": texts_system.smi_list(n.nvml),
        "ib": texts.ibstat(n.net), "dev": texts_network.ibv_devinfo(n.net), "ip": texts_network.ip_addr(n.net),
        "uname": texts_system.uname(n),
    }  # fmt: skip
    options: list[str] = []
    for name, text in written.items():
        if not text:
            continue
        (tmp_path / name).write_text(text)
        options += ["--from", str(tmp_path / name)]
    assert run(save, tmp_path / "x.snap", *options).code == 0
    text = gzip.decompress((tmp_path / "x.snap").read_bytes()).decode()
    found = {u for t in written.values() for u in re.findall(r"GPU-[0-9a-f\-]{36}", t)}
    assert found
    assert [u for u in found if u in text] == []


def test_placement_takes_texts_as_one_machine(tmp_path: Path) -> None:
    n = node_of("hgx_h100_cx7")
    (tmp_path / "q.txt").write_text(texts.smi_query(n.nvml))
    (tmp_path / "numa.txt").write_text(texts.numactl(n.numa))
    ran = run(placement, "--from", tmp_path / "q.txt", "--from", tmp_path / "numa.txt", "--format", "json")
    assert ran.code == 0
    assert len(json.loads(ran.out)["ranks"]) == 1
