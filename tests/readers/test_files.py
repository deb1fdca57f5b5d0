"""Files as they are handed over: many, packed, damaged, hostile; and what is said of where a fact is from."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
from pathlib import Path

import pytest

from tests.cli.commands import run
from tests.machines.builder import cached
from tests.readers import texts
from tests.readers.facts import read, told
from topocheck.cli.report import report
from topocheck.cli.snapshot import save
from topocheck.host.base import Answer, Host, RecordedBackend
from topocheck.model.base import InputError, Missing, known
from topocheck.pipeline import build_report, read_node
from topocheck.readers.archive import MAX_ONE_TEXT
from topocheck.readers.files import read_data, read_files
from topocheck.readers.together import joined

LSPCI = """00:00.0 Host bridge [0600]: Intel Corporation Device [8086:09a2] (rev 20)
\tControl: I/O- Mem- BusMaster-

00:01.0 PCI bridge [0604]: Intel Corporation Device [8086:352a] (rev 04) (prog-if 00 [Normal decode])
\tControl: I/O- Mem+ BusMaster+
\tBus: primary=00, secondary=01, subordinate=01, sec-latency=0
\tCapabilities: [40] Express (v2) Root Port (Slot+), MSI 00
\t\tLnkCap:\tPort #0, Speed 16GT/s, Width x16, ASPM not supported
\t\t\tClockPM- Surprise- LLActRep+ BwNot+ ASPMOptComp+
\t\tLnkSta:\tSpeed 16GT/s, Width x8 (downgraded)
\t\t\tTrErr- Train- SlotClk+ DLActive+ BWMgmt- ABWMgmt-
\tCapabilities: [100 v1] Access Control Services
\t\tACSCap:\tSrcValid+ TransBlk+ ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans+
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-

01:00.0 3D controller [0302]: NVIDIA Corporation GA100 [A100 PCIe 40GB] [10de:20f1] (rev a1)
\tSubsystem: NVIDIA Corporation Device [10de:145f]
\tControl: I/O- Mem+ BusMaster+
\tNUMA node: 0
\tRegion 1: Memory at 3f000000000 (64-bit, prefetchable) [size=64G]
\tCapabilities: [68] Express (v2) Endpoint, MSI 00
\t\tLnkCap:\tPort #0, Speed 16GT/s, Width x16, ASPM not supported
\t\t\tClockPM+ Surprise- LLActRep- BwNot- ASPMOptComp+
\t\tLnkSta:\tSpeed 16GT/s, Width x8 (downgraded)
\t\tLnkCap2: Supported Link Speeds: 2.5-16GT/s, Crosslink- Retimer+ 2Retimers+ DRS-
\tCapabilities: [100 v1] Advanced Error Reporting
\tKernel driver in use: nvidia
"""
"""Of a machine made up for this test; the words are those of pciutils 3.10."""


def _tar(members: dict[str, bytes], links: dict[str, str] | None = None, mode: str = "w") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload]
        for name, body in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(body)
            archive.addfile(info, io.BytesIO(body))
        for name, target in (links or {}).items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            archive.addfile(info)
    return out.getvalue()


def test_lspci_gives_the_facts_that_stand_there() -> None:
    devices = read(LSPCI).pci.devices
    assert known(devices)
    _, port, gpu = devices
    assert gpu.chain == ("pci0000:00", "0000:00:01.0", "0000:01:00.0")
    assert (gpu.vendor_id, gpu.device_id, gpu.subsystem_device_id, gpu.class_code) == (0x10DE, 0x20F1, 0x145F, 0x030200)
    assert (gpu.max_speed_gt_s, gpu.max_width_lanes) == (16.0, 16)
    assert (gpu.current_speed_gt_s, gpu.current_width_lanes) == (16.0, 8)
    assert gpu.driver == "nvidia"
    assert gpu.numa_node == 0
    assert gpu.cap2_speeds_gt_s == (2.5, 5.0, 8.0, 16.0)
    assert known(gpu.bars)
    assert [(b.line, b.size_bytes, b.prefetchable) for b in gpu.bars] == [(1, 64 << 30, True)]
    # SrcValid, ReqRedir, CmpltRedir and UpstreamFwd are bits 0, 2, 3 and 4 (PCIe base specification 7.7.11.3).
    assert port.acs_control_word == 0b11101
    assert port.link_active is True
    assert gpu.acs_capable is False
    assert isinstance(gpu.local_cpulist, Missing)


def test_a_selection_tells_no_place() -> None:
    """`lspci -s 01:00.0` lists no bridge, so what stands above the GPU is not known."""
    devices = read(LSPCI[LSPCI.index("01:00.0 3D") :]).pci.devices
    assert known(devices)
    assert devices[0].chain == ()


def test_narrow_link_is_judged_and_its_line_named() -> None:
    """LnkSta of the GPU stands in line 25 of the text."""
    line = LSPCI.split("\n").index("\t\tLnkSta:\tSpeed 16GT/s, Width x8 (downgraded)", 16) + 1
    answers = read_data("lspci.txt", LSPCI.encode()).answers
    judged = build_report(Host(RecordedBackend(answers), "lspci.txt"))
    found = [f for f in judged.findings if f.id.startswith("pcie.") and "width" in f.id]
    sources = [e.source for f in found for e in f.evidence]
    assert any(s.startswith(f"lspci.txt:{line} (/sys/bus/pci/devices/0000:01:00.0/current_link_width") for s in sources)


def test_nothing_is_ok_by_what_was_not_told() -> None:
    """The text says nothing of RDMA, limits and settings: no check of these is ok."""
    judged = build_report(Host(RecordedBackend(read_data("x", LSPCI.encode()).answers)))
    states = {r.id: r.state.value for r in judged.results}
    for check in ("rdma.port-down", "limits.memlock", "nccl.conf-shadowed", "p2p.acs-redirect", "nvlink.links-down"):
        assert states[check] != "ok", check
    # The card and its port both have x16 in the text, and run at x8: that is told.
    assert [f.id for f in judged.findings if f.state.value == "fail"] == ["pcie.link-width"]


def test_two_files_that_differ_are_told() -> None:
    other = LSPCI.replace("10de:20f1", "10de:2330")
    line = next(n for n, x in enumerate(LSPCI.split("\n"), 1) if x.startswith("01:00.0"))
    answers = _joined({"a.txt": LSPCI, "b.txt": other})
    node = read_node(Host(RecordedBackend(answers)))
    assert node.made_from is not None
    (d,) = node.made_from.differ
    assert (d.first, d.first_at, d.other, d.other_at) == ("0x20f1", f"a.txt:{line}", "0x2330", f"b.txt:{line}")
    judged = build_report(Host(RecordedBackend(answers)))
    assert [f.state.value for f in judged.findings if f.id == "consistency.sources-differ"] == ["warn"]


def test_a_link_that_has_come_to_rest_is_no_difference() -> None:
    idle = LSPCI.replace(
        "LnkSta:\tSpeed 16GT/s, Width x8 (downgraded)", "LnkSta:\tSpeed 2.5GT/s (downgraded), Width x8"
    )
    node = read_node(Host(RecordedBackend(_joined({"a.txt": LSPCI, "b.txt": idle}))))
    assert node.made_from is not None
    assert node.made_from.differ == ()


def _joined(files: dict[str, str]) -> dict[str, Answer]:
    return joined([(Path(n), t.encode()) for n, t in files.items()])


@pytest.mark.parametrize(
    "data",
    [
        gzip.compress(LSPCI.encode()),
        lzma.compress(LSPCI.encode()),
        LSPCI.replace("\n", "\r\n").encode("utf-8-sig"),
        LSPCI.encode("utf-16"),
        _tar({"sos/sos_commands/pci/lspci": LSPCI.encode(), "sos/etc/passwd": b"x:0:0"}),
        gzip.compress(_tar({"lspci.txt": LSPCI.encode()})),
        ("nvidia-bug-report\n" + "_" * 44 + "\n\n/sbin/lspci -vvv\n\n" + LSPCI + "\n" + "_" * 44 + "\n").encode(),
    ],
    ids=["gzip", "xz", "CRLF", "UTF-16", "sosreport", "tar.gz", "bug report"],
)
def test_however_it_is_packed(data: bytes) -> None:
    devices = read(data).pci.devices
    assert known(devices)
    assert [d.address for d in devices] == ["0000:00:00.0", "0000:00:01.0", "0000:01:00.0"]
    assert devices[2].current_width_lanes == 8


def test_files_of_the_kernel_in_an_archive() -> None:
    """A collected /sys, as sosreport and hwloc-gather-topology have it: links lead within the archive only."""
    at = "host/sys/devices/pci0000:00/0000:00:01.0"
    members = {
        f"{at}/vendor": b"0x10de\n",
        f"{at}/device": b"0x2330\n",
        f"{at}/class": b"0x030200\n",
        f"{at}/numa_node": b"1\n",
        "host/proc/version": b"Linux version 6.8.0 (x)\n",
    }
    links = {"host/sys/bus/pci/devices/0000:00:01.0": "../../../devices/pci0000:00/0000:00:01.0"}
    node = read(_tar(members, links))
    assert known(node.pci.devices)
    (gpu,) = node.pci.devices
    assert (gpu.chain, gpu.vendor_id, gpu.numa_node) == (("pci0000:00", "0000:00:01.0"), 0x10DE, 1)
    assert node.system.kernel_release == "6.8.0"


def test_an_archive_leads_nowhere_else() -> None:
    """Absolute names, names with .. and links that leave: nothing of this system comes in, nothing is written."""
    links = {"sys/bus/pci/devices": "/../../../../../sys/bus/pci/devices", "proc/version": "/etc/hostname"}
    data = _tar({"../../etc/cron.d/x": b"y", "/proc/cmdline": b"iommu=pt\n"}, links)
    answers = read_data("x.tar", data).answers
    assert told(answers, "list:/sys/bus/pci/devices") == 0
    assert told(answers, "read:/proc/version") == 0
    assert answers["kernel_options:"] == ["iommu=pt"]


@pytest.mark.parametrize(
    "data",
    [b"", b"hello\n", b"\x00" * 5000, b"\x1f\x8b\x08", b"{}", b"[" * 100000, b"GPU 0:", b"\xff\xfe\x00"],
)
def test_what_is_none_of_these_is_one_line(data: bytes) -> None:
    with pytest.raises(InputError) as e:
        read_data("x", data)
    assert "\n" not in str(e.value)


def test_the_line_says_what_is_understood(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("nothing\n")
    result = run(report, "--from", str(tmp_path / "x.txt"))
    assert result.code == 2
    assert "docs/readers.md" in result.error
    assert "nvidia-smi -q" in result.error
    assert len(result.error) < 400


BOMB = '<?xml version="1.0"?><!DOCTYPE topology [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>'


@pytest.mark.parametrize(
    "text",
    [
        BOMB + '<topology><object type="Machine">&b;</object></topology>',
        '<topology><object type="Machine">' + "<object>" * 5000,
        '<system version="1"><cpu ' + 'a="1" ' * 1000,
        "<nvidia_smi_log><gpu>" * 2000,
    ],
    ids=["entities", "deep", "attributes", "open"],
)
def test_hostile_xml(text: str) -> None:
    with pytest.raises(InputError):
        read_data("x.xml", text.encode())


@pytest.mark.parametrize(
    "line",
    [
        " ",
        "\t",
        "a",
        "GPU0 X ",
        "[",
        "Capabilities: ",
        "01:00.0 ",
        "CA ''",
        ": ",
        "-+-[0000:00]-+-00.0-[01]",
        "A=",
        "(",
        "/",
    ],
)
def test_long_lines_and_many_lines_end(line: str) -> None:
    """No pattern takes the square of its text: that would be hours."""
    for data in (line * 200_000, (line + "\n") * 200_000, LSPCI + line * 200_000):
        try:
            read_data("x", data.encode())
        except InputError:
            continue


def test_report_from_several_files(tmp_path: Path) -> None:
    node = read_node(cached("rtxpro6000_x8_asus").host())
    (tmp_path / "q.txt").write_text(texts.smi_query(node.nvml))
    (tmp_path / "numa.txt").write_text(texts.numactl(node.numa))
    result = run(report, "--from", str(tmp_path / "q.txt"), "--from", str(tmp_path / "numa.txt"))
    assert result.code == 0
    head = result.out[:900]
    assert "q.txt: nvidia-smi -q" in head
    assert "numa.txt: numactl -H" in head
    assert "the PCI tree" in head
    saved = run(save, str(tmp_path / "s.snap"), "--from", str(tmp_path / "q.txt"))
    assert saved.code == 0
    again = run(report, "--from", str(tmp_path / "s.snap"))
    assert "file 1: nvidia-smi -q" in again.out
    assert "q.txt" not in again.out


def test_one_snapshot_is_as_ever(tmp_path: Path) -> None:
    """A snapshot alone is its answers and nothing beside."""
    from tests.support.snapshots import record, write_snapshot

    path = write_snapshot(tmp_path / "a.snap", "l40s_x8")
    found = read_files([path])
    assert found.header is not None
    assert found.answers.keys() == record("l40s_x8").keys()


def test_a_small_file_that_unpacks_to_a_large_text_is_refused() -> None:
    bomb = gzip.compress(bytes(MAX_ONE_TEXT + 1), 1)
    with pytest.raises(InputError, match="larger than 96 MiB when unpacked"):
        read_data("x", bomb)


def test_a_file_that_was_compressed_twice() -> None:
    """Collectors compress what is compressed; a snapshot, which is compressed itself, stays one."""
    twice = gzip.compress(bz2.compress(LSPCI.encode()))
    answers = read_data("x.gz", twice).answers
    assert answers["sources:"]["files"][0]["formats"][0].startswith("lspci")  # type: ignore[index, call-overload]
    snap = gzip.compress((Path(__file__).parents[2] / "docs/examples/half_width.snap").read_bytes())
    assert read_data("x.snap.gz", snap).answers["sources:"]["files"][0]["formats"] == ("snapshot",)  # type: ignore[index, call-overload]


@pytest.mark.parametrize(
    ("start", "words"),
    [(b"\x28\xb5\x2f\xfd\x24", "zstd -d FILE"), (b"7z\xbc\xaf\x27\x1c\x00", "7z x FILE"), (b"%PDF-1.7\n", "pdftotext")],
)
def test_a_compression_that_is_not_read_is_named(start: bytes, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_data("x", start + b"\0" * 40)
