"""A described machine, written out as each text and read back: equal facts, within what the text can hold."""

from __future__ import annotations

import functools

import pytest

from tests.machines.builder import cached, names
from tests.readers import texts
from tests.readers.facts import read, wrong
from topocheck.model.base import Missing, known
from topocheck.model.node import Node
from topocheck.pipeline import read_node

MACHINES = [n for n in names() if n != "thousand_devices"]
# nvidia-smi rounds memory down to MiB; the counters and capabilities of links are of other options.
NOT_OF_Q = ("memory_total_bytes", "memory_used_bytes", "nvlinks", "nvlink_count", "p2p")


@functools.cache
def _node(name: str) -> Node:
    return read_node(cached(name).host())


def _healthy_gpus(name: str) -> bool:
    gpus = _node(name).nvml.gpus
    return known(gpus) and len(gpus) > 0 and all(known(g.address) and not g.error for g in gpus)


WITH_GPUS = [n for n in MACHINES if _healthy_gpus(n)]


@pytest.mark.parametrize("name", WITH_GPUS)
def test_smi_query(name: str) -> None:
    want, got = _node(name).nvml, read(texts.smi_query(_node(name).nvml)).nvml
    assert wrong(got, want, leave_out=NOT_OF_Q) == []
    assert known(got.gpus)
    assert known(want.gpus)
    assert [(g.address, g.uuid, g.pcie_gen_max) for g in got.gpus] == [
        (g.address, g.uuid, g.pcie_gen_max) for g in want.gpus
    ]
    for g, w in zip(got.gpus, want.gpus, strict=True):
        if isinstance(g.memory_total_bytes, int) and isinstance(w.memory_total_bytes, int):
            assert 0 <= w.memory_total_bytes - g.memory_total_bytes < texts.MIB


@pytest.mark.parametrize("name", WITH_GPUS)
def test_smi_xml(name: str) -> None:
    want, got = _node(name).nvml, read(texts.smi_xml(_node(name).nvml)).nvml
    assert wrong(got, want, leave_out=NOT_OF_Q) == []
    assert known(got.gpus)
    assert known(want.gpus)
    assert [(g.address, g.name) for g in got.gpus] == [(g.address, g.name) for g in want.gpus]


@pytest.mark.parametrize("name", [n for n in WITH_GPUS if any(g.nvlinks for g in _node(n).nvml.gpus)])  # type: ignore[union-attr]
def test_smi_nvlink(name: str) -> None:
    want = _node(name).nvml
    got = read(texts.smi_nvlink(want)).nvml
    assert known(got.gpus)
    assert known(want.gpus)
    links = {g.index: [(k.link, k.active) for k in g.nvlinks] for g in want.gpus if g.nvlinks}
    assert {g.index: [(k.link, k.active) for k in g.nvlinks] for g in got.gpus if g.nvlinks} == links
    speeds = [k.speed_mb_s for g in got.gpus for k in g.nvlinks if k.active is True]
    assert speeds == [k.speed_mb_s for g in want.gpus for k in g.nvlinks if k.active is True]


@pytest.mark.parametrize("name", [n for n in MACHINES if known(_node(n).numa.nodes)])
def test_numactl(name: str) -> None:
    want, got = _node(name).numa, read(texts.numactl(_node(name).numa)).numa
    assert wrong(got, want, leave_out=("memory_total_bytes", "memory_free_bytes", "has_cpu", "online_cpus")) == []
    assert known(got.nodes)
    assert known(want.nodes)
    assert [(n.node, n.cpulist, n.distances) for n in got.nodes] == [
        (n.node, n.cpulist, n.distances) for n in want.nodes
    ]


@pytest.mark.parametrize("name", [n for n in MACHINES if known(_node(n).net.rdma) and _node(n).net.rdma])
def test_ibstat(name: str) -> None:
    want, got = _node(name).net, read(texts.ibstat(_node(name).net)).net
    assert wrong(got.rdma, want.rdma, leave_out=("rate_text",)) == [] or _known_ports(want) is False
    assert known(got.rdma)
    assert known(want.rdma)
    assert [d.name for d in got.rdma] == [d.name for d in want.rdma]
    assert [[(p.port, p.state) for p in d.ports] for d in got.rdma] == [
        [(p.port, p.state) for p in d.ports] for d in want.rdma
    ]


def _known_ports(net: object) -> bool:
    return "Missing" not in repr(net)


@pytest.mark.parametrize("name", [n for n in MACHINES if known(_node(n).pci.devices) and _node(n).pci.devices])
def test_dmesg(name: str) -> None:
    """Places come from the buses of bridges; where these are not known (no config space), there are none."""
    want = _node(name).pci.devices
    assert not isinstance(want, Missing)
    numbered = tuple(d for d in want if all(known(x) for x in (d.vendor_id, d.device_id, d.class_code)))
    got = read(texts.dmesg(numbered))
    assert wrong(got.pci, _node(name).pci, leave_out=("numa_node",)) == []
    assert known(got.pci.devices)
    assert len(got.pci.devices) == len(numbered)
    assert got.system.kernel_release == "6.8.0-31-generic"
    assert got.system.kernel_options == ("iommu=pt",)
