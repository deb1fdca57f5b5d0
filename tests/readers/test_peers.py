"""What lspci and lstopo print of the described machines, read back: nothing told wrong, and the tree whole."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.conftest import require_program
from tests.machines.builder import Machine, cached, names
from tests.readers.facts import read, wrong
from tests.support.waiting import PATIENCE_S
from topocheck.model.base import Missing
from topocheck.model.node import Node
from topocheck.model.pci import PciDevice
from topocheck.pipeline import read_node

pytestmark = pytest.mark.service

WITH_PCI = [n for n in names() if n != "thousand_devices" and cached(n).functions]


@pytest.fixture(scope="module", params=WITH_PCI)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Machine, Path, Node]:
    """A machine, the folder that holds its files, and its facts."""
    m = cached(request.param)
    folder = tmp_path_factory.mktemp(request.param)
    m.export(folder)
    return m, folder, read_node(m.host())


def _run(*argv: str, **environment: str) -> str:
    require_program(argv[0])
    env = {**os.environ, "LC_ALL": "C", **environment}
    return subprocess.run(argv, capture_output=True, text=True, check=True, env=env, timeout=PATIENCE_S).stdout


def _devices(node: Node) -> tuple[PciDevice, ...]:
    assert not isinstance(node.pci.devices, Missing)
    return node.pci.devices


def _awake(node: Node) -> bool:
    return all(d.runtime_status != "suspended" for d in _devices(node))


@pytest.mark.parametrize("options", [("-vvv",), ("-vvv", "-nn", "-D"), ("-vvvxxxx",)], ids=" ".join)
def test_lspci_as_root(exported: tuple[Machine, Path, Node], options: tuple[str, ...]) -> None:
    """Every function with all its registers; names are those of this system's pci.ids."""
    _, folder, want = exported
    got = read(_run("lspci", "-O", f"sysfs.path={folder}/sys/bus/pci", *options))
    if _awake(want):  # lspci wakes a suspended device, which topocheck does not
        assert wrong(got.pci, want.pci, leave_out=("vendor_name", "device_name")) == []
    assert [d.address for d in _devices(got)] == [d.address for d in _devices(want)]
    if any(d.address.startswith("0000:00:") for d in _devices(want)):
        chains = [() if len(d.address) > 12 else d.chain for d in _devices(want)]
        assert [d.chain for d in _devices(got)] == chains
    told = {d.address: d for d in _devices(got)}
    for d in _devices(want):
        if _awake(want) and not isinstance(d.acs_control_word, Missing):
            assert told[d.address].acs_control_word == d.acs_control_word


@pytest.mark.parametrize("options", [("-nn",), ("-tv",), ("-tnn",)], ids=" ".join)
def test_lspci_short(exported: tuple[Machine, Path, Node], options: tuple[str, ...]) -> None:
    """Without -v lspci does not print the interface, the last byte of the class."""
    _, folder, want = exported
    got = read(_run("lspci", "-O", f"sysfs.path={folder}/sys/bus/pci", *options))
    assert wrong(got.pci, want.pci, leave_out=("vendor_name", "device_name", "class_code", "revision")) == []
    assert len(_devices(got)) == len(_devices(want))
    if options != ("-nn",):
        # Which function shows a VMD's domain (above 0xffff) is not drawn.
        chains = [() if len(d.address) > 12 else d.chain for d in _devices(want)]
        assert [d.chain for d in _devices(got)] == chains


def test_lstopo(exported: tuple[Machine, Path, Node]) -> None:
    """hwloc's XML; it has no object for a NUMA node without CPUs and memory."""
    m, folder, want = exported
    environment = {"HWLOC_FSROOT": str(folder), "HWLOC_THISSYSTEM": "0", "HWLOC_COMPONENTS": "linux,stop"}
    got = read(_run("lstopo-no-graphics", "--of", "xml", "--whole-io", **environment))
    assert wrong(got.pci, want.pci, leave_out=("vendor_name", "device_name", "class_code", "revision")) == []
    assert wrong(got.net, want.net) == []
    empty = ("online_nodes",) if m.name in ("gh200", "gb200_tray") else ()
    assert wrong(got.numa, want.numa, leave_out=empty) == []
    assert wrong(got.system, want.system) == []
