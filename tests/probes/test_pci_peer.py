"""Our reading of a tree against that of lspci, the standard program for it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import require_program
from tests.probes.spaces import acs, ats, config_space, pcie
from tests.probes.test_pci import DOWN, GPU, LINK_16, PLACES, ROOT, UP, function
from tests.probes.trees import Link, host_of
from topocheck.model.pci import AcsControl, PortType
from topocheck.probes.pci import sysfs as pci

PORT_NAMES = {
    PortType.ENDPOINT: "Endpoint",
    PortType.ROOT_PORT: "Root Port",
    PortType.UPSTREAM: "Upstream Port",
    PortType.DOWNSTREAM: "Downstream Port",
}
ACS_NAMES = ("SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "EgressCtrl", "DirectTrans")

# address: (port type code, buses, LnkCap, LnkSta, DevCap, DevCtl, ACS control)
MACHINE = {
    ROOT: (4, (0x17, 0x18, 0x1F), 0x105, 0x1104, 0x2, 0x2020, 0x1D),
    UP: (5, (0x18, 0x19, 0x1F), 0x104, 0x1104, 0x2, 0x2040, None),
    DOWN: (6, (0x19, 0x1B, 0x1B), 0x104, 0x1083, 0x2, 0x0000, 0x5F),
    GPU: (0, None, 0x104, 0x1083, 0x1, 0x5130, None),
}


def tree() -> dict[str, str | bytes | Link | None]:
    out: dict[str, str | bytes | Link | None] = {"/sys/bus/pci/slots": None}
    for address, (kind, buses, lnkcap, lnksta, devcap, devctl, control) in MACHINE.items():
        capability = pcie(
            port_type=kind, lnkcap=lnkcap, lnksta=lnksta, devcap=devcap, devctl=devctl, lnkcap2=0x1E, slot=kind == 6
        )
        class_code = 0x060400 if buses else 0x030200
        vendor, device = (0x10B5, 0x8747) if buses else (0x10DE, 0x20B0)
        extended = [ats(enabled=True)] if control is None else [acs(control), ats(enabled=False)]
        out |= function(
            PLACES[address],
            {
                "vendor": f"0x{vendor:04x}",
                "device": f"0x{device:04x}",
                "class": f"0x{class_code:06x}",
                "irq": "0",
                "resource": "\n".join(["0x0000000000000000 0x0000000000000000 0x0000000000000000"] * 7),
                "config": config_space(
                    vendor=vendor,
                    device=device,
                    class_code=class_code,
                    bridge=buses,
                    capabilities=[capability],
                    extended=extended,
                ),
                **LINK_16,
            },
        )
    return out


@pytest.mark.service
def test_lspci_reads_the_same_registers(tmp_path: Path) -> None:
    require_program("lspci")
    host, _ = host_of(tmp_path, tree())
    devices = pci.read(host).devices
    assert isinstance(devices, tuple)
    result = subprocess.run(
        ["lspci", "-O", f"sysfs.path={tmp_path}/sys/bus/pci", "-D", "-vvv"],
        capture_output=True,
        text=True,
        check=True,
        env={"LC_ALL": "C", "PATH": "/usr/bin:/usr/sbin:/sbin:/bin"},
    )
    blocks = {block.split()[0]: block for block in result.stdout.strip().split("\n\n")}
    assert set(blocks) == {d.address for d in devices} == set(MACHINE)
    for d in devices:
        text = blocks[d.address]
        assert isinstance(d.port_type, PortType)
        assert re.search(rf"Express \(v2\) {PORT_NAMES[d.port_type]}\b", text)
        cap = re.search(r"LnkCap:.*Speed ([\d.]+)GT/s, Width x(\d+)", text)
        sta = re.search(r"LnkSta:.*?Speed ([\d.]+)GT/s.*?Width x(\d+)", text)
        payload = re.search(r"DevCap:\s*MaxPayload (\d+) bytes", text)
        control = re.search(r"MaxPayload (\d+) bytes, MaxReadReq (\d+) bytes", text)
        assert cap is not None
        assert sta is not None
        assert payload is not None
        assert control is not None
        assert (d.cap_speed_gt_s, d.cap_width_lanes) == (float(cap[1]), int(cap[2]))
        assert (d.sta_speed_gt_s, d.sta_width_lanes) == (float(sta[1]), int(sta[2]))
        assert d.max_payload_supported_bytes == int(payload[1])
        assert (d.max_payload_bytes, d.max_read_request_bytes) == (int(control[1]), int(control[2]))
        assert d.relaxed_ordering is ("RlxdOrd+" in text)
        assert d.ats_enabled is bool(re.search(r"ATSCtl:\s*Enable\+", text))
        told = re.search(r"ACSCtl:\s*(.*)", text)
        assert d.acs_capable is bool(told)
        if told:
            assert isinstance(d.acs, AcsControl)
            assert d.acs.names() == tuple(n for n in ACS_NAMES if f"{n}+" in told[1])
        buses = re.search(r"secondary=([0-9a-f]+), subordinate=([0-9a-f]+)", text)
        if buses:
            assert (d.secondary_bus, d.subordinate_bus) == (int(buses[1], 16), int(buses[2], 16))


@pytest.mark.service
def test_lspci_and_we_see_the_same_functions_here() -> None:
    require_program("lspci")
    from topocheck.host.base import Host
    from topocheck.host.live.backend import LiveBackend

    devices = pci.read(Host(LiveBackend())).devices
    result = subprocess.run(
        ["lspci", "-D", "-n"], capture_output=True, text=True, check=False, env={"PATH": "/usr/bin:/usr/sbin:/sbin"}
    )
    if result.returncode:
        pytest.skip("no PCI on this machine")
    theirs = {}
    for line in result.stdout.splitlines():
        address, class_code, ids = line.split()[:3]
        theirs[address] = (class_code.rstrip(":"), ids)
    assert isinstance(devices, tuple)
    ours = {d.address: (f"{d.base_class:04x}", f"{d.vendor_id:04x}:{d.device_id:04x}") for d in devices}
    assert ours == theirs
