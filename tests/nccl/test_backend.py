"""Which communication library fits a machine."""

from __future__ import annotations

import msgspec
import pytest

from tests.machines.builder import machine
from tests.topology.described import cached
from topocheck.model.system import SoftwareFacts
from topocheck.nccl.backend import backends
from topocheck.pipeline import read_node
from topocheck.probes.registry import PROBES
from topocheck.topology.build import build


def fits(name: str, **software: object) -> dict[str, str]:
    node = cached(name)
    if software:
        node = msgspec.structs.replace(node, software=SoftwareFacts(**software))
    return {b.name: b.fits for b in backends(node, build(node))}


@pytest.mark.parametrize("name", ["hgx_h100_cx7", "dgx1v", "h100_x2_vm", "rtx4090_x8", "laptop"])
def test_nvidia_gpus_take_nccl(name):
    found = fits(name)
    assert found["NCCL"] == "best"
    assert found["Gloo"] == "yes"
    assert next(iter(found.values())) == "best"


def test_amd_takes_rccl():
    found = fits("mi300x_x8")
    assert found["RCCL"] == "best"
    assert found["NCCL"] == "no"


def test_without_a_driver_nccl_does_not_fit():
    assert fits("driver_not_loaded")["NCCL"] == "no"


def test_mpi_by_what_is_known_of_it():
    versions = {"mpi": "4.1.6"}
    aware = fits("hgx_h100_cx7", versions=versions, mpi_implementation="Open MPI", mpi_cuda_aware=True)
    assert aware["MPI"] == "yes"
    assert fits("hgx_h100_cx7", versions=versions, mpi_implementation="Open MPI")["MPI"] == "unknown"
    assert fits("hgx_h100_cx7")["MPI"] == "no"


def test_nothing_is_said_of_a_rate_that_was_not_measured():
    node = cached("no_pci")
    assert not build(node).gpus
    software = SoftwareFacts(versions={"mpi": "4.1.6"}, mpi_implementation="Open MPI")
    node = msgspec.structs.replace(node, software=software)
    said = {b.name: b for b in backends(node, build(node))}
    assert (said["MPI"].fits, said["Gloo"].fits) == ("yes", "best")
    assert said["MPI"].reason.startswith("Open MPI is here; without RDMA it needs TCP between nodes as Gloo does")
    assert not any("faster" in b.reason or "slower" in b.reason for b in said.values())


def network(name: str, **environment: str) -> str:
    """What the summary says NCCL takes between nodes."""
    node = read_node(machine(name, environment=environment).host(), PROBES)
    why = next(b.reason for b in backends(node, build(node)) if b.name == "NCCL")
    return why.partition(" here, ")[2]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "InfiniBand (8 active HCAs) between nodes"),
        ({"NCCL_IB_DISABLE": "1"}, "TCP between nodes, through host memory, for NCCL_IB_DISABLE=1"),
        ({"NCCL_NET": "Socket"}, "TCP between nodes, through host memory, for NCCL_NET=Socket"),
        ({"NCCL_IB_HCA": "^mlx5_8,mlx5_9"}, "InfiniBand (8 active HCAs; NCCL_IB_HCA leaves out 2) between nodes"),
        ({"NCCL_IB_HCA": "=mlx5_8"}, "RoCE (1 active device; NCCL_IB_HCA leaves out 9) between nodes"),
        (
            {"NCCL_IB_HCA": "mlx4"},
            "TCP between nodes, through host memory, for NCCL_IB_HCA=mlx4 leaves no active device",
        ),
        ({"NCCL_NET": "IB", "NCCL_IB_HCA": "mlx4"}, "nothing between nodes, for NCCL_NET=IB"),
        ({"NCCL_NET": "AWS Libfabric"}, "the network of NCCL_NET=AWS Libfabric between nodes"),
    ],
)
def test_settings_in_force_choose_the_network(environment, expected):
    """hgx_h100_cx7: eight InfiniBand NICs, mlx5_0 to 7, and two of Ethernet."""
    assert network("hgx_h100_cx7", **environment) == expected


def test_without_an_interface_there_is_nothing_between_nodes():
    assert network("gh200") == "nothing between nodes: no interface is up but lo"
    assert network("rtx4090_x8") == "TCP between nodes, through host memory"


def test_every_answer_has_a_reason():
    for name in ("hgx_h100_cx7", "mi300x_x8", "no_pci", "laptop"):
        node = cached(name)
        assert all(b.reason for b in backends(node, build(node)))
