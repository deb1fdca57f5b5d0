"""Functions that manage NVSwitches: named by their VPD where root may read it, else known by what all can read."""

from __future__ import annotations

import pytest

from tests.machines.builder import machine
from tests.support.recorder import Recorder
from topocheck.host.base import Host
from topocheck.host.live.filters import kept
from topocheck.host.recording.anonymize import anonymize
from topocheck.model.base import Reason
from topocheck.pipeline import read_node
from topocheck.probes.kept.table import table
from topocheck.topology.build import build

B200 = "h50_hgx_b200"
FOUR = ("0000:6b:00.0", "0000:6b:00.1", "0000:88:00.0", "0000:88:00.1")
VPD = b"\x82\x10\0ConnectX-7 x\x90\x20\0SN\x0cMT2345X01234VA MLX:PCI=V0:SMDL=SW_MNG\x78"


@pytest.mark.parametrize(
    ("change", "managing"),
    [
        ({}, FOUR),
        ({"system": {"root": False}}, FOUR),  # by narrow links, since nobody but root may read VPD
        # A narrow ConnectX-7 whose VPD says nothing of switches is a NIC; one that is wide and says so is none.
        ({"patch": {"mlx5_8": {"vpd": "MLX:PCI=V0"}}}, FOUR[1:]),
        ({"patch": {"mlx5_0": {"vpd": "MLX:SMDL=SW_MNG"}}}, ("0000:18:00.0", *FOUR)),
    ],
)
def test_who_manages_the_switches(change: dict[str, object], managing: tuple[str, ...]) -> None:
    assert build(read_node(machine(B200, **change).host())).switch_functions == managing


def test_vpd_is_read_where_switches_are_hidden_and_nowhere_else() -> None:
    def asked(name: str) -> list[str]:
        recorder = Recorder(machine(name).backend)
        read_node(Host(recorder))
        return [q for q in recorder.answers if "/vpd" in q]

    assert len(asked(B200)) == 12  # four functions of the switches, eight NICs
    assert asked("hgx_h100_cx7") == []


def test_without_root_the_reason_is_kept() -> None:
    node = read_node(machine(B200, system={"root": False}).host())
    (d,) = (d for d in node.pci.devices if d.address == FOUR[0])  # type: ignore[union-attr]
    assert d.manages_nvswitch.reason is Reason.DENIED  # type: ignore[union-attr]


def test_nothing_of_it_enters_but_the_mark() -> None:
    """Vital product data has a serial number, so neither a report nor a snapshot is given more than the mark."""
    question = "read:/sys/bus/pci/devices/0000:6b:00.0/vpd|1024"
    assert kept(question, VPD) == b"SMDL=SW_MNG"
    assert kept(question, VPD.replace(b"SW_MNG", b"NIC")) == b""
    assert anonymize({question: b"SMDL=SW_MNG"}, table(), b"k" * 16) == {question: b"SMDL=SW_MNG"}
