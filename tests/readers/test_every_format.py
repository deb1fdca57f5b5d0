"""One machine written out as each text that is read, and read back: equal facts within what the text can hold."""

from __future__ import annotations

import gzip
import io
import itertools
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import topocheck
from tests.machines.builder import cached, names
from tests.readers import texts, texts_network, texts_system
from tests.readers.facts import read, wrong
from topocheck.host.base import Host, RecordedBackend
from topocheck.model.base import InputError, Missing, known
from topocheck.model.node import Node
from topocheck.pipeline import build_report, read_node
from topocheck.readers.files import read_data, read_files
from topocheck.readers.registry import readers
from topocheck.render.report_json import encode, report_document

MACHINES = [n for n in names() if n != "thousand_devices"]
_NODES: dict[str, Node] = {}


def node_of(name: str) -> Node:
    if name not in _NODES:
        _NODES[name] = read_node(cached(name).host())
    return _NODES[name]


def _gpus(n: Node) -> bool:
    gpus = n.nvml.gpus
    return known(gpus) and bool(gpus) and all(known(g.address) and known(g.name) and not g.error for g in gpus)


def _rdma(n: Node) -> bool:
    rdma = n.net.rdma
    fields = ("state", "phys_state", "rate_gbit_s", "link_layer", "lid")
    return known(rdma) and bool(rdma) and all(known(getattr(p, f)) for d in rdma for p in d.ports for f in fields)


def _gids(n: Node) -> bool:
    return _rdma(n) and any(p.gids for d in n.net.rdma for p in d.ports if known(p.gids))  # type: ignore[union-attr]


def _numbered(n: Node) -> bool:
    # The table has P0 to P15, sizes and a mode of every GPU.
    fields = ("performance_state", "memory_total_bytes", "compute_mode", "persistence_mode")
    return _gpus(n) and all(known(getattr(g, f)) for g in n.nvml.gpus for f in fields)  # type: ignore[union-attr]


ROUNDED = ("memory_total_bytes", "memory_used_bytes", "memory_free_bytes")
"""Sizes that a program prints in MiB."""
Writer = Callable[[Node], str]
FORMATS: dict[str, tuple[Writer, tuple[str, ...], tuple[str, ...], Callable[[Node], bool]]] = {
    "ibv_devinfo -v": (lambda n: texts_network.ibv_devinfo(n.net), ("net",), ("rate_text",), _rdma),
    "show_gids": (lambda n: texts_network.show_gids(n.net), ("net",), (), _gids),
    "mst status": (
        lambda n: texts_network.mst_status(n), ("net",), (),
        lambda n: _rdma(n) and any(known(d.address) and d.netdevs for d in n.net.rdma),  # type: ignore[union-attr]
    ),
    "ulimit": (
        lambda n: texts_system.ulimit(n), ("limits",), (),
        lambda n: all(known(x) for x in (n.limits.memlock_bytes, n.limits.shm_total_bytes, n.limits.shm_free_bytes)),
    ),
    "systemctl status": (
        lambda n: texts_system.systemctl_status(n), ("system",), (), lambda n: bool(n.system.services),
    ),
    "ibstatus": (lambda n: texts_network.ibstatus(n.net), ("net",), (), _rdma),
    "rdma link": (lambda n: texts_network.rdma_link(n.net), ("net",), (), _rdma),
    "ibdev2netdev -v": (
        lambda n: texts_network.ibdev2netdev(n.net), ("net",), (),
        lambda n: _rdma(n) and any(d.netdevs and known(d.address) for d in n.net.rdma),  # type: ignore[union-attr]
    ),
    "ip addr": (
        lambda n: texts_network.ip_addr(n.net), ("net",), ("flags", "ip_netmasks"),
        lambda n: known(n.net.interfaces) and bool(n.net.interfaces)
        and all(known(i.mtu_bytes) for i in n.net.interfaces),
    ),
    "ethtool": (
        lambda n: texts_network.ethtool(n.net), ("net",), (),
        lambda n: known(n.net.interfaces) and any(known(i.speed_mbit_s) for i in n.net.interfaces),
    ),
    "nvidia-smi topo -p2p": (
        lambda n: "\n".join([texts.smi_query(n.nvml), *(texts_system.smi_p2p(n.nvml, k) for k in "rwn")]),
        ("nvml",), (*ROUNDED, "nvlinks", "nvlink_count"),
        lambda n: _gpus(n)
        and len(n.nvml.p2p) == len(n.nvml.gpus) * (len(n.nvml.gpus) - 1) > 0  # type: ignore[arg-type]
        and all(known(x) for s in n.nvml.p2p for x in (s.read, s.write, s.nvlink)),
    ),
    "nvidia-smi nvlink -R": (
        lambda n: "\n".join(["$ nvidia-smi nvlink -s", texts.smi_nvlink(n.nvml), "$ nvidia-smi nvlink -R",
                             texts_system.smi_remote(n.nvml)]),
        ("nvml",), (),
        lambda n: _gpus(n) and any(known(k.remote_address) for g in n.nvml.gpus for k in g.nvlinks),  # type: ignore[union-attr]
    ),
    "nvidia-smi": (lambda n: texts_system.smi_table(n.nvml), ("nvml",), ROUNDED, _numbered),
    "nvidia-smi -L": (lambda n: texts_system.smi_list(n.nvml), ("nvml",), (), _gpus),
    "lscpu": (
        lambda n: texts_system.lscpu(n), ("system", "numa"), (),
        lambda n: n.system.machine == "x86_64" and known(n.numa.nodes) and known(n.system.cpu_vendor)
        and all(known(x) for x in (n.numa.online_cpus, n.system.cpu_model_name, n.system.cpu_family)),
    ),
    "lsmod": (lambda n: texts_system.lsmod(n), ("system",), ("modules",), lambda n: bool(n.system.loaded_modules)),
    "uname -a": (
        lambda n: texts_system.uname(n), ("system",), (),
        lambda n: known(n.system.kernel_release) and known(n.system.hostname) and known(n.system.machine),
    ),
    "/proc/cmdline": (lambda n: texts_system.cmdline(n), ("system",), (), lambda n: known(n.system.kernel_options)),
    "gdscheck -p": (
        lambda n: texts_system.gdscheck(n.nvml), ("nvml",), (),
        lambda n: _gpus(n) and all(known(g.bar1_total_bytes) for g in n.nvml.gpus),  # type: ignore[union-attr]
    ),
    "NCCL topology XML": (
        lambda n: texts_system.nccl_xml(n), ("pci",), ("vendor_name", "device_name"),
        lambda n: known(n.pci.devices) and any(isinstance(d.numa_node, int) for d in n.pci.devices),
    ),
}  # fmt: skip
ELSEWHERE = {
    "ibstat": "test_round_trip", "numactl -H": "test_round_trip", "nvidia-smi -q": "test_round_trip",
    "nvidia-smi -q -x": "test_round_trip", "dmesg or journalctl -k": "test_round_trip",
    "lspci (-vvv as root tells most)": "test_peers", "lspci -tv": "test_peers",
    "hwloc XML (lstopo file.xml)": "test_peers", "env": "test_formats",
}  # fmt: skip
"""Formats that other tests write out or let their own program write."""
CASES = [(f, m) for f, (_, _, _, fits) in FORMATS.items() for m in MACHINES if fits(node_of(m))]


@pytest.mark.parametrize(("name", "machine"), CASES)
def test_what_is_written_out_is_read_back(name: str, machine: str) -> None:
    write, areas, rounded, _ = FORMATS[name]
    want = node_of(machine)
    text = write(want)
    got = read(text)
    for area in areas:
        leave_out = (*rounded, "topo_file", "files", "error", "nvml_version", "memory_max_bytes")
        assert wrong(getattr(got, area), getattr(want, area), area, leave_out) == []
    assert got.made_from is not None
    assert got.made_from.places, text[:300]


WITH_TEXT = {name: (write(node_of("hgx_h100_cx7")), areas, rounded) for name, (write, areas, rounded, fits)
             in FORMATS.items() if fits(node_of("hgx_h100_cx7"))}  # fmt: skip


@given(st.sampled_from(sorted(WITH_TEXT)), st.integers(0, 1 << 16), st.integers(0, 1 << 16))
def test_a_text_that_is_cut_at_lines_says_nothing_wrong(name: str, start: int, end: int) -> None:
    """Its head or its tail is lost, or both: fewer facts, none other."""
    text, areas, rounded = WITH_TEXT[name]
    lines = text.split("\n")
    first, last = start % (len(lines) // 3 + 1), len(lines) - end % (len(lines) // 3 + 1)
    try:
        got = read("\n".join(lines[first:last]) + "\n")
    except InputError:
        return  # nothing that is left of it is known by itself
    leave_out = (*rounded, "topo_file", "files", "error", "nvml_version", "memory_max_bytes")
    want = node_of("hgx_h100_cx7")
    assert [x for area in areas for x in wrong(getattr(got, area), getattr(want, area), area, leave_out)] == []


def test_every_format_is_tried_on_some_machine() -> None:
    tried = {f for f, _ in CASES}
    assert set(FORMATS) == tried
    covered = (*FORMATS, *ELSEWHERE, "nvidia-smi topo -m", "nvidia-smi nvlink -s", "a JSON report", "rdma link")
    missing = [r.name for r in readers() if not any(r.name.startswith(c.partition(" -")[0]) for c in covered)]
    assert missing == []


@pytest.mark.parametrize("machine", [m for m in MACHINES if cached(m).classes_expected()])
def test_matrix(machine: str) -> None:
    """The classes of a public capture, written as nvidia-smi does."""
    classes = cached(machine).classes_expected()
    gpus = {x for pair in classes for x in pair if x.startswith("GPU")}
    whole = {(a, b) for a, b in itertools.combinations(sorted(gpus), 2)} <= {*classes, *((b, a) for a, b in classes)}
    if not whole:
        pytest.skip("the capture does not tell all pairs")
    matrix = read(texts_system.smi_topo(classes)).smi_topo.matrix
    assert matrix is not None
    names = {matrix.device_name(row): row for row in matrix.rows}
    told = {(a, b): matrix.class_of(names[a], names[b]) for a, b in classes}
    assert told == dict(classes)


def report_of(machine: str) -> Any:
    return build_report(Host(RecordedBackend(_recorded(machine)), machine))


def _recorded(machine: str) -> Any:
    from tests.support.snapshots import record

    return record(machine)


SOME = ["hgx_h100_cx7", "dgx_a100", "l40s_x8", "gb200_tray", "h100_x2_vm", "h26_vm_flat_a800"]


@pytest.mark.parametrize("machine", SOME)
def test_json_report(machine: str) -> None:
    report = report_of(machine)
    got = read(encode(report_document(report, topocheck.__version__)))
    # A report holds no registers, no capabilities of links, no counters; rates as text.
    for area in ("pci", "nvml", "net", "numa"):
        leave_out = ("vendor_name", "device_name", "errors", "capabilities", "error", "revision", "subsystem_vendor_id")
        assert wrong(getattr(got, area), getattr(report.node, area), area, leave_out) == []


def tarred(folder: Path, top: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.add(folder, arcname=top)
    return out.getvalue()


@pytest.mark.parametrize("machine", SOME)
def test_tree_of_the_kernel_in_an_archive_and_in_a_folder(machine: str, tmp_path: Path) -> None:
    """What sosreport and hwloc-gather-topology collect: /sys and /proc with their links."""
    cached(machine).export(tmp_path / "host")
    want = node_of(machine)
    for found in (
        read_data("host.tar.gz", gzip.compress(tarred(tmp_path / "host", "sosreport-host"), 1)),
        read_files([tmp_path / "host"]),
    ):
        got = read_node(Host(RecordedBackend(found.answers)))
        for area in ("pci", "numa", "net"):
            leave_out = ("vendor_name", "device_name", "verbs_opens", "verbs_accessible", "ip_addresses", "ip_netmasks")
            assert wrong(getattr(got, area), getattr(want, area), area, leave_out) == []
        assert known(got.pci.devices)
        assert not isinstance(want.pci.devices, Missing)
        assert [d.chain for d in got.pci.devices] == [d.chain for d in want.pci.devices]
        places = got.made_from.places if got.made_from is not None else {}
        first = want.pci.devices[0].address
        assert places[f"read:/sys/bus/pci/devices/{first}/vendor"].endswith("/vendor")


@pytest.mark.parametrize("machine", ["hgx_h100_cx7", "l40s_x8"])
def test_bug_report_of_nvidia(machine: str) -> None:
    """The parts of nvidia-bug-report.log since 2011: rules, `*** FILE` with its `ls`, commands by their path."""
    n = node_of(machine)
    gpu = n.nvml.gpus[0].address  # type: ignore[union-attr, index]
    rule = "_" * 44
    parts = [
        "Start of NVIDIA bug report log file.  Please include this file, along",
        f"*** /sys/bus/pci/devices/{gpu}/numa_node\n*** ls: -rw-r--r-- 1 root root 4096 2023-11-15 /sys/x\n0",
        f"*** /sys/bus/pci/devices/{gpu}/power/runtime_usage does not exist",
        "*** /var/log/Xorg.0.log\n*** ls: -rw-r--r-- 1 root root 1 2023 /var/log/Xorg.0.log\n[     7.334] \n"
        "X.Org X Server 1.21.1.4\n[     7.334] Kernel command line: BOOT_IMAGE=/vmlinuz ro iommu=soft",
        "Scanning kernel log files for NVIDIA kernel messages:\n\n  journalctl -b -0:\n"
        "[    1.000000] NVRM: Xid (PCI:0000:18:00): 31, pid=1\n\n  journalctl -b -1:\n"
        "[    1.000000] NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus.",
        f"/usr/bin/nvidia-smi --query\n\n{texts.smi_query(n.nvml)}\n\n/usr/bin/nvidia-smi --query --unit\n\n"
        "==============NVSMI LOG==============\n\nDriver Version                            : 580.1",
        "*** /proc/cmdline\n*** ls: -r--r--r-- 1 root root 0 2023-11-15 /proc/cmdline\nBOOT_IMAGE=/vmlinuz ro iommu=pt",
    ]
    text = "".join(f"{rule}\n\n{p}\n\n" for p in parts)
    got = read(text)
    assert (
        wrong(got.nvml, n.nvml, leave_out=(*ROUNDED, "nvlinks", "nvlink_count", "p2p", "error", "driver_version")) == []
    )
    assert known(got.nvml.gpus)
    assert len(got.nvml.gpus) == len(n.nvml.gpus)  # type: ignore[arg-type]
    assert got.system.kernel_options == ("iommu=pt",)
    assert got.system.kernel_log == ("NVRM: Xid (PCI:0000:18:00): 31",)
    assert got.made_from is not None
    question = f"read:/sys/bus/pci/devices/{gpu}/numa_node"
    line = text.split("\n").index("0") + 1
    assert got.made_from.places[question] == f"text:{line}"
