"""NCCL's topology file: what it says against the machine, and what NCCL does with one it cannot use."""

from __future__ import annotations

from typing import Any

import pytest

from tests.checks import support
from tests.checks.software import healthy, one, run, state, variant
from topocheck.checks.registry import Context
from topocheck.model.base import State
from topocheck.nccl.predict.report import view
from topocheck.nccl.topofile.write import write_topology
from topocheck.nccl.topofile.xml import write

HGX, VM = "hgx_h100_cx7", "h100_x2_vm"
PATH, DEFAULT = "/opt/topo.xml", "/var/run/nvidia-topologyd/virtualTopology.xml"
ID = "nccl.topo-file"


def own_file(name: str) -> str:
    """Return what NCCL would dump on a machine."""
    c = healthy(name)
    return write(write_topology(c.node, c.topology, (2, 28, 9)))


def with_file(name: str, text: Any) -> Context:
    return variant(name, environment={"NCCL_TOPO_FILE": PATH}, files={PATH: text})


def test_no_file() -> None:
    assert state(ID, healthy(HGX)) is State.NOT_APPLICABLE


@pytest.mark.parametrize("name", [HGX, VM, "dgx_a100"])
def test_the_machine_as_it_is(name: str) -> None:
    assert state(ID, with_file(name, own_file(name))) is State.OK


def test_the_default_file_counts_without_the_setting() -> None:
    changed = own_file(HGX).replace('link_width="16"', 'link_width="8"', 1)
    assert state(ID, variant(HGX, files={DEFAULT: own_file(HGX)})) is State.OK
    f = one(ID, variant(HGX, files={DEFAULT: changed}))
    assert (f.state, f.subject) == (State.WARN, DEFAULT)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('link_width="16"', 'link_width="8"', "width 8, here 16"),
        ('link_speed="32.0 GT/s PCIe"', 'link_speed="16.0 GT/s PCIe"', "speed 16.0 GT/s PCIe, here 32.0 GT/s PCIe"),
        ('numaid="1"', 'numaid="0"', "numa 0, here 1"),
        ('gdr="1"', 'gdr="0"', "gdr 0, here 1"),
    ],
)
def test_a_value_of_another_machine(old: str, new: str, says: str) -> None:
    text = own_file(HGX)
    assert old in text
    f = one(ID, with_file(HGX, text.replace(old, new)))
    assert f.state is State.WARN
    assert says in f"{f.title} {f.rule}"


def test_gpus_of_another_machine() -> None:
    """A file for a machine of the same kind whose bus ids differ: none of it is here, and nothing here is in it."""
    f = one(ID, with_file(HGX, own_file("dgx_a100")))
    assert f.state is State.WARN
    assert "is not in it" in f.title or "which is not here" in f.title


def test_in_a_guest_the_provider_may_know_more() -> None:
    text = own_file(VM).replace('link_width="0"', 'link_width="8"')
    f = one(ID, with_file(VM, text))
    assert f.state is State.NOTE
    assert "provider" in f.consequence


@pytest.mark.parametrize(
    "text",
    [
        "not XML",
        '<system version="1"><cpu numaid="0">',
        '<?xml version="1.0"?>\n<system version="1"/>',
        '<system version="2">\n</system>\n',
        '<system version="1">\n\t<cpu numaid="0"/>\n</system>\n',
    ],
)
def test_a_file_that_ends_the_init(text: str) -> None:
    """NCCL's reader knows no prologue and no tabs, and takes version 1 only (src/graph/xml.cc)."""
    c = with_file(HGX, text)
    f = one(ID, c)
    assert f.state is State.FAIL
    assert "fails with an error" in f.consequence
    assert view(c.node, c.topology, c.gpudirect).fatal.startswith(PATH)


def test_a_file_that_cannot_be_opened_is_passed_over() -> None:
    for c in (variant(HGX, environment={"NCCL_TOPO_FILE": PATH}), with_file(HGX, {"error": "EACCES"})):
        f = one(ID, c)
        assert f.state is State.WARN
        assert "cannot open" in f.title
        assert view(c.node, c.topology, c.gpudirect).fatal == ""


def test_what_cannot_be_told_is_unknown() -> None:
    assert one(ID, variant(HGX, environment={"NCCL_TOPO_FILE": "topo.xml"})).state is State.UNKNOWN
    hung = variant(HGX, environment={"NCCL_TOPO_FILE": PATH}, files={PATH: "x"}, hangs=[f"read:{PATH}"])
    assert one(ID, hung).state is State.UNKNOWN


def test_the_prediction_goes_by_the_file() -> None:
    """Without gdr on the NICs, NCCL takes no GPUDirect RDMA, whatever the machine could do."""
    plain = view(*_three(healthy(HGX)))
    by_file = view(*_three(with_file(HGX, own_file(HGX).replace('gdr="1"', 'gdr="0"'))))
    assert any(p.transport == "NET/GDRDMA" for p in plain.pairs)
    assert not any(p.transport == "NET/GDRDMA" for p in by_file.pairs)


def _three(c: Context) -> tuple[Any, Any, Any]:
    return c.node, c.topology, c.gpudirect


def test_without_a_usable_gpu_there_is_nothing_to_judge() -> None:
    result, found = run(ID, with_file("driver_not_loaded", own_file(HGX)))
    assert (result.state, found) == (State.NOT_APPLICABLE, ())


def test_a_flat_guest_with_the_providers_default_file_is_told_enough() -> None:
    """What the guest cannot see, the file tells NCCL: worth a note, and nothing to set."""
    c = variant("h26_vm_flat_a800", files={DEFAULT: '<system version="1"/>'})
    (f,) = support.findings("p2p.flat-vm-tree", c)
    assert (f.state, f.fix) == (State.NOTE, None)
    assert any(e.source == DEFAULT for e in f.evidence)
