"""The described trees as `lspci` and `lstopo` read them: the same devices, the same tree, the same links."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.conftest import require_program
from tests.machines.builder import Machine, cached, machine, names
from tests.machines.description import GTS, load
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.service

WITH_PCI = [n for n in names() if n != "thousand_devices" and load(n).get("pci", {}).get("tree")]
_RATE_GB_S = {1: 0.25, 2: 0.5, 3: 8 * 128 / 130 / 8, 4: 16 * 128 / 130 / 8, 5: 32 * 128 / 130 / 8}
"""GB/s per lane: GT/s x coding / 8 (8b/10b up to generation 2, 128b/130b from 3 on)."""

_HWLOC_GEN_2 = {"old": 0.5, "new": 5 * 128 / 130 / 8}
"""GB/s per lane that hwloc 2.9 makes of `5 GT/s` (right) and of `5.0 GT/s PCIe` (as if coded 128b/130b)."""


def _run(argv: list[str], **environment: str) -> str:
    env = {**os.environ, "LC_ALL": "C", **environment}
    return subprocess.run(argv, capture_output=True, text=True, check=True, env=env, timeout=PATIENCE_S).stdout


def _lspci(folder: Path, *options: str) -> str:
    require_program("lspci")
    return _run(["lspci", "-O", f"sysfs.path={folder}/sys/bus/pci", *options])


@pytest.fixture(scope="module", params=WITH_PCI)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Machine, Path]:
    """A machine and the folder that holds its files."""
    m = cached(request.param)
    folder = tmp_path_factory.mktemp(request.param)
    m.export(folder)
    return m, folder


def test_lspci_sees_every_function_with_its_ids(exported: tuple[Machine, Path]) -> None:
    """Same addresses, classes, vendors and devices."""
    m, folder = exported
    got = {}
    for line in _lspci(folder, "-D", "-n").splitlines():
        address, cls, ids = line.split()[:3]
        got[address] = (cls.rstrip(":"), ids)
    want = {
        f.address: (
            f"{int(f.options.get('class', f.product['class']), 16) >> 8:04x}",
            f.options.get("id", f.product["id"]),
        )
        for f in m.functions.values()
    }
    assert got == want


def test_lspci_draws_the_same_tree(exported: tuple[Machine, Path]) -> None:
    """Each bridge with its secondary and subordinate bus, as its config space says, in lspci's own tree."""
    m, folder = exported
    tree = _lspci(folder, "-t")
    for f in m.functions.values():
        if f.role in ("root_port", "upstream", "downstream"):
            assert f.secondary is not None
            last = f"-{f.subordinate:02x}" if f.subordinate != f.secondary else ""
            assert f"{f.address[-4:]}-[{f.secondary:02x}{last}]" in tree, f.address
    for root in m.roots:
        assert f"[{root.domain}:{root.bus:02x}]" in tree


def test_lspci_decodes_the_links_as_described(exported: tuple[Machine, Path]) -> None:
    """LnkCap and LnkSta of every function, from the config space we wrote (all machines that root reads)."""
    m, folder = exported
    if not m.description["system"].get("root"):
        assert "access denied" in _lspci(folder, "-vvv")
        return
    blocks = {b.split()[0]: b for b in _lspci(folder, "-D", "-vvv").split("\n\n") if b.strip()}
    for f in m.functions.values():
        block = blocks[f.address]
        if f.options.get("lost") == "1":
            assert "Unknown header type 7f" in block
            continue
        if f.max is None or f.now is None:
            assert "LnkCap:" not in block
            continue
        cap = re.search(r"LnkCap:.*Speed ([\d.]+)GT/s, Width x(\d+)", block)
        sta = re.search(r"LnkSta:\s*Speed ([\d.]+)GT/s(?: \(\w+\))?, Width x(\d+)", block)
        assert cap, f.address
        assert sta, f.address
        speed = GTS[f.max.gen].removesuffix(".0")
        assert (cap[1], int(cap[2])) == (speed, f.max.width), f.address
        assert (sta[1], int(sta[2])) == (GTS[f.now.gen].removesuffix(".0"), f.now.width), f.address


def test_lspci_decodes_port_types_and_acs(exported: tuple[Machine, Path]) -> None:
    """The PCIe capability's port type and the ACS control word."""
    m, folder = exported
    if not m.description["system"].get("root"):
        assert "Express (v2)" not in _lspci(folder, "-vvv")  # an ordinary user sees no capability
        return
    words = {
        "root_port": "Root Port",
        "upstream": "Upstream Port",
        "downstream": "Downstream Port",
        "endpoint": "Endpoint",
        "rc_endpoint": "Root Complex Integrated Endpoint",
        "pcie_to_pci": "PCI-Express to PCI/PCI-X Bridge",
    }
    blocks = {b.split()[0]: b for b in _lspci(folder, "-D", "-vvv").split("\n\n") if b.strip()}
    for f in m.functions.values():
        if f.options.get("lost") == "1" or (f.max is None and f.role != "rc_endpoint"):
            continue
        assert re.search(rf"Express \(v2\) {re.escape(words[f.role])}", blocks[f.address]), f.address
        if "acs" in f.options:
            word = int(f.options["acs"], 16)
            names_ = ("SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "EgressCtrl", "DirectTrans")
            text = " ".join(f"{n}{'+' if word >> i & 1 else '-'}" for i, n in enumerate(names_))
            assert f"ACSCtl:\t{text}" in blocks[f.address], f.address


@functools.cache
def _lstopo(folder: Path) -> ET.Element:
    require_program("lstopo")
    # -x86: hwloc would ask this CPU's own cpuid beside the tree; linux alone reads the tree.
    text = _run(
        ["lstopo", "--whole-io", "--disallowed", "--of", "xml"],
        HWLOC_FSROOT=str(folder),
        HWLOC_COMPONENTS="linux,pci,stop",
        HWLOC_DUMPED_HWDATA_DIR="/nonexistent",
        HWLOC_HIDE_ERRORS="2",
        HWLOC_KEEP_NVIDIA_GPU_NUMA_NODES="1",  # else hwloc leaves out nodes that numa_status names as a GPU's
    )
    return ET.fromstring(text)


def test_lstopo_sees_the_same_devices_and_links(exported: tuple[Machine, Path]) -> None:
    """hwloc's link rate is the current one, in GB/s."""
    m, folder = exported
    got = {}
    for o in _lstopo(folder).iter("object"):
        if "pci_busid" in o.attrib:
            got[o.attrib["pci_busid"]] = float(o.attrib.get("pci_link_speed", 0))
    bridges = {o.attrib.get("pci_busid") for o in _lstopo(folder).iter("object") if o.attrib.get("type") == "Bridge"}
    for f in m.functions.values():
        domain = f.address.split(":")[0]
        if len(domain) > 4:
            continue  # hwloc 2.9 is built with 16-bit domains (HWLOC_HAVE_32BITS_PCI_DOMAIN off)
        if f.options.get("lost") == "1":
            continue  # its config space is all ones: hwloc makes what it can of that
        if f.is_bridge and f.address not in bridges:
            assert not f.children, f.address  # hwloc leaves out bridges with nothing below
            continue
        assert f.address in got, f.address
        if f.now is None or f.max is None or f.now.width == 0:
            continue
        per_lane = _RATE_GB_S[f.now.gen]
        if f.now.gen == 2 and not m.description["system"].get("root"):
            per_lane = _HWLOC_GEN_2[m.description["system"].get("speed_spelling", "new")]
        assert got[f.address] == pytest.approx(per_lane * f.now.width, rel=1e-3), f.address


def test_lspci_decodes_what_a_patch_plants(tmp_path: Path) -> None:
    """Payload sizes, relaxed ordering, ATS, SR-IOV, serial number, clique, containment, error counters' capability."""
    m = machine(
        "hgx_h100_cx7",
        patch={
            "mlx5_0": {"mps": "128", "mrrs": "4096", "ro": "0", "ats": "on", "totalvfs": "16", "numvfs": "2"},
            "mlx5_1": {"ats": "off", "serial": "0x1122334455667788", "aer": "0"},
            "GPU0": {"clique": "3"},
            "above GPU0": {"acs": "0x5d", "dpc": "1"},
        },
    )
    m.export(tmp_path)

    def said(label: str) -> str:
        return _lspci(tmp_path, "-vvv", "-s", m.label(label).address)

    assert "MaxPayload 128 bytes, MaxReadReq 4096 bytes" in said("mlx5_0")
    assert "RlxdOrd-" in said("mlx5_0")
    assert "RlxdOrd+" in said("mlx5_1")
    assert "ATSCtl:\tEnable+" in said("mlx5_0")
    assert "ATSCtl:\tEnable-" in said("mlx5_1")
    assert re.search(r"Total VFs: 16, Number of VFs: 2", said("mlx5_0"))
    assert "Device Serial Number 11-22-33-44-55-66-77-88" in said("mlx5_1")
    assert "Advanced Error Reporting" not in said("mlx5_1")
    assert "Vendor Specific Information: Len=08" in said("GPU0")
    port = m.label("GPU0").parent
    assert port is not None
    text = _lspci(tmp_path, "-vvv", "-s", port.address)
    assert "ACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans+" in text
    assert "Downstream Port Containment" in text
    assert re.search(r"DpcSta:\s*Trigger\+", text)


@pytest.mark.parametrize("spelling", ["old", "new"])
def test_lstopo_misreads_one_spelling(spelling: str, tmp_path: Path) -> None:
    """The one misreading of a peer that we know: generation 2 in the newer spelling, where only sysfs tells it."""
    m = machine("dgx2", system={"root": False, "speed_spelling": spelling})
    m.export(tmp_path)
    switches = [f for f in m.functions.values() if f.kind == "nvswitch"]
    got = {
        o.attrib["pci_busid"]: float(o.attrib["pci_link_speed"])
        for o in _lstopo(tmp_path).iter("object")
        if "pci_link_speed" in o.attrib
    }
    assert len(switches) == 12
    for f in switches:
        assert got[f.address] == pytest.approx(4 * _HWLOC_GEN_2[spelling], rel=1e-3)
        assert m.tree.text(f"{f.path}/current_link_speed") == {"old": "5 GT/s", "new": "5.0 GT/s PCIe"}[spelling]


def test_lstopo_sees_the_same_numa_nodes(exported: tuple[Machine, Path]) -> None:
    """Node numbers and their CPUs, also where numbers have gaps and nodes have no CPU."""
    m, folder = exported
    got = {int(o.attrib["os_index"]) for o in _lstopo(folder).iter("object") if o.attrib.get("type") == "NUMANode"}
    want = {int(n["id"]) for n in m.description["numa"]}
    assert got == want
    pus = sum(o.attrib.get("type") == "PU" for o in _lstopo(folder).iter("object"))
    from topocheck.model.address import parse_cpulist

    assert pus == sum(len(parse_cpulist(n.get("cpus", ""))) for n in m.description["numa"])
