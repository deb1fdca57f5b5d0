"""Fixes with conditions: the first that can work on this machine is printed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.checks.support import context, facts, healthy, variant
from tests.machines.builder import machine
from topocheck.checks.shared import fixes
from topocheck.checks.shared.fixes import Fix, first_fitting
from topocheck.gpudirect.inputs import Ground
from topocheck.gpudirect.registration import peermem
from topocheck.model.base import Missing, Reason
from topocheck.topology.build import build

HGX = "hgx_h100_cx7"


def test_the_first_that_fits() -> None:
    c = healthy(HGX)
    yes, no = (lambda _: True), (lambda _: False)
    assert first_fitting(c, Fix("a", (no,)), Fix("b", (yes, no)), Fix("c", (yes,)), Fix("d")) == "c"
    assert first_fitting(c, Fix("a", (no,))) is None
    assert first_fitting(c, Fix("d")) == "d"


@pytest.mark.parametrize(
    ("condition", "change", "holds"),
    [
        (fixes.in_container, {"system": {"marks": ["/.dockerenv"]}}, True),
        (fixes.in_container, {}, False),
        (fixes.in_kubernetes, {"environment": {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}}, True),
        (fixes.in_slurm, {"environment": {"SLURM_JOB_ID": "7"}}, True),
        (fixes.in_slurm, {}, False),
        (fixes.is_root, {"system": {"root": True}}, True),
        (fixes.is_root, {"system": {"root": False}}, False),
        (fixes.in_guest, {"system": {"hypervisor": "KVM"}}, True),
        (fixes.open_module, {"driver": {"flavor": "open"}}, True),
        (fixes.open_module, {"driver": {"flavor": "proprietary"}}, False),
        (fixes.kernel_from(6, 11), {"system": {"kernel": "6.11.0-9-generic"}}, True),
        (fixes.kernel_from(6, 11), {"system": {"kernel": "6.8.0-45-generic"}}, False),
        (fixes.kernel_from(6, 11), {"system": {"kernel": "unknown"}}, False),
        (fixes.never(fixes.in_container), {}, True),
    ],
)
def test_conditions(condition: fixes.Condition, change: dict[str, Any], holds: bool) -> None:
    assert condition(variant(HGX, **change)) is holds


INBOX = dict.fromkeys(("mlx5_core", "mlx5_ib", "ib_core"), "")
VENDOR = dict.fromkeys(("mlx5_core", "mlx5_ib", "ib_core"), "24.10-3.2.5")
NO_PEERS = {"/sys/kernel/mm/memory_peers": {"remove": True}}


@pytest.mark.parametrize(
    ("os", "kernel", "modules", "there"),
    [
        ("Ubuntu 22.04.5 LTS", "6.8.0-45-generic", INBOX, False),
        ("Ubuntu 22.04.5 LTS", "6.5.0-27-generic", INBOX, True),
        ("Ubuntu 24.04.1 LTS", "6.8.0-1013-nvidia", INBOX, True),
        ("Ubuntu 24.04.1 LTS", "6.8.0-1013-nvidia-64k", INBOX, True),
        ("Ubuntu 22.04.5 LTS", "6.8.0-45-generic", VENDOR, True),
        ("Rocky Linux 9.4", "5.14.0-427.el9.x86_64", INBOX, False),
        ("Rocky Linux 9.4", "5.14.0-427.el9.x86_64", VENDOR, True),
    ],
)
def test_the_peer_memory_interface(os: str, kernel: str, modules: dict[str, str], there: bool) -> None:
    """The kernel's own RDMA stack never had it; its makers' have, and some of Ubuntu's kernels."""
    m = machine("dgx1v", system={"os": os, "kernel": kernel}, modules=modules, files=NO_PEERS)
    assert fixes.peer_memory(context(facts(m))) is there


def test_the_symbol_counts_more_than_names() -> None:
    path = "/lib/modules/6.8.0-45-generic/modules.symbols"
    lines = "alias symbol:ib_register_peer_memory_client ib_core\n"
    m = machine("dgx1v", system={"os": "Ubuntu 22.04.5 LTS", "kernel": "6.8.0-45-generic"}, modules=INBOX,
                files={**NO_PEERS, path: lines})  # fmt: skip
    assert fixes.peer_memory(context(facts(m)))


def test_an_interface_that_nothing_tells_is_not_denied() -> None:
    """Of files without the system's name, the kernel's symbols and /sys/kernel/mm nothing says that it is absent."""
    lost = Missing(Reason.NOT_RECORDED, "x")
    node = facts(machine("dgx1v", modules=INBOX, files=NO_PEERS))
    system = msgspec.structs.replace(node.system, memory_peers=lost, peer_memory_symbol=lost, os_name=lost)
    system = msgspec.structs.replace(system, modules={"mlx5_core": ""}, loaded_modules={})
    ground = Ground(node=msgspec.structs.replace(node, system=system), topology=build(node), guest=False)
    step = peermem(ground).step
    assert "whether the RDMA stack has the interface for it is not known" in step.text
    assert (step.fix or "").startswith("modprobe nvidia-peermem; if that fails")
