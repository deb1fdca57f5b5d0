"""NICs on the PCI bus that have no RDMA device."""

from __future__ import annotations

from collections.abc import Iterator

from topocheck.checks.needs import unless_lost
from topocheck.checks.registry import Context, check, not_applicable
from topocheck.checks.shared.common import is_guest, listed, pci_devices, quote
from topocheck.checks.shared.fixes import Fix, first_fitting, in_container
from topocheck.checks.sources import GPUS, Needs
from topocheck.model.base import Evidence, Finding, Missing, Reason, State, known
from topocheck.model.pci import PciDevice
from topocheck.topology.rdma_functions import is_rdma_only, rdma_module

_FAST_MBIT_S = 100_000
"""Speed of an Ethernet interface from which on it is worth a note that RDMA is off."""


@check(
    "rdma.no-device",
    title="An RDMA NIC is on the PCI bus and has no RDMA device",
    severity=State.WARN,
    reads=("PCI class and driver", "/sys/class/infiniband", "/proc/modules"),
    needs=Needs((*GPUS, "rdma"), ("driver", "modules")),
)
def no_device(c: Context) -> Iterator[Finding]:
    """An RDMA NIC is on the PCI bus and has no RDMA device.

    Looks at:
        PCI functions of InfiniBand controllers and EFAs, and Ethernet functions whose driver has an RDMA half, against
        the devices of /sys/class/infiniband; and whether the module that makes them is loaded.

    Why it matters:
        NCCL finds no RDMA device and uses TCP sockets: a tenth of the bandwidth, without an error.

    Fix:
        Load the module (`modprobe mlx5_ib`), or install the NIC's driver. In a container that has its own network
        namespace, the RDMA subsystem may hide devices of others (`rdma system`).

    Does not apply:
        Without GPUs; to virtual functions, functions given to guests, those that manage NVSwitches, and the other
        functions of a card with an RDMA device (a bond is one device). Where text (`ibstat`) names as many RDMA devices
        without their PCI address, it is unknown. Ethernet functions are only noted, and not in a guest, where one has
        an interface of 100 Gb/s or more and no RDMA device is here at all.
    """
    rdma = c.node.net.rdma
    if isinstance(rdma, Missing) and rdma.reason is not Reason.ABSENT:
        raise not_applicable("which RDMA devices there are is not known")
    if not c.topology.gpus:
        raise not_applicable("no NVIDIA GPU")
    idle = [pci_devices(c)[a] for a in c.topology.rdma_functions]
    if not idle:
        raise not_applicable("every PCI function that can do RDMA has an RDMA device, or there is none")
    only = [d for d in idle if is_rdma_only(d)]
    if (unplaced := len(c.topology.unplaced_nics)) and unplaced >= len(only or idle):
        raise not_applicable("which PCI functions the RDMA devices belong to is not known")
    if only:
        yield _finding(c, only, unless_lost(c, State.WARN, "rdma"))
    elif not c.topology.nics and not is_guest(c) and (fast := [d for d in idle if _is_fast(c, d)]):
        yield _finding(c, fast, State.NOTE)


def _is_fast(c: Context, device: PciDevice) -> bool:
    interfaces = c.node.net.interfaces
    speeds = [i.speed_mbit_s for i in interfaces if i.address == device.address] if known(interfaces) else []
    return any(known(s) and s >= _FAST_MBIT_S for s in speeds)


def _finding(c: Context, idle: list[PciDevice], state: State) -> Finding:
    modules = list(dict.fromkeys(m for d in idle if (m := rdma_module(d)) is not None and not _loaded(c, m)))
    bare = [d for d in idle if isinstance(d.driver, Missing) and d.driver.reason is Reason.ABSENT]
    names = listed((f"{d.address}{_name(d)}" for d in idle), 4)
    if modules and _modules_known(c):
        cause = f": {listed(modules)} is not loaded"
    elif len(bare) == len(idle):
        cause = ": no driver is bound"
    else:
        cause = ""
    kind = "RDMA" if any(d.base_class != idle[0].base_class for d in idle) else _kind(idle[0])
    return Finding(
        state=state,
        subject="node" if len(idle) > 1 else idle[0].address,
        devices=tuple(d.address for d in idle),
        title=f"{len(idle)} {kind} function{'s' if len(idle) > 1 else ''} on the PCI bus ({names}), and "
        f"{_missing(c, idle)}{cause}",
        consequence="NCCL leaves these NICs out; without another RDMA NIC it uses TCP sockets, at a tenth of the "
        "bandwidth",
        evidence=(
            *(e for d in idle[:2] for e in (*d.evidence("class"), *quote(d, "driver", d.driver))),
            Evidence("/sys/class/infiniband", _devices(c)),
            *(Evidence(f"/sys/module/{m}", "(absent)") for m in modules if _modules_known(c)),
        ),
        rule="an RDMA device for each function that can do RDMA",
        fix=first_fitting(c, *_fixes(modules, cause)),
    )


def _missing(c: Context, idle: list[PciDevice]) -> str:
    if unplaced := len(c.topology.unplaced_nics):  # of fewer than the functions: some have none, and not which
        return f"only {unplaced} RDMA device{'s' if unplaced > 1 else ''}"
    return f"no RDMA device for {'them' if len(idle) > 1 else 'it'}"


def _fixes(modules: list[str], cause: str) -> tuple[Fix, ...]:
    load = f"modprobe {' '.join(modules)}" if modules else ""
    install = "install the NIC's driver (the distribution's, or the maker's OFED), then reboot or load it"
    if load and cause:
        return (
            Fix(f"on the node, outside this container: {load}", (in_container,)),
            Fix(f"{load} (persistently: a line in /etc/modules-load.d); if it is not there, {install}"),
        )
    return (
        Fix(
            "start the container with the host's network; or, on the node, rdma system set netns shared (root)",
            (in_container,),
        ),
        Fix(f"check the driver's messages in dmesg; {install}"),
    )


def _loaded(c: Context, module: str) -> bool:
    return module in c.node.system.modules or module in c.node.system.loaded_modules


def _modules_known(c: Context) -> bool:
    """Tell whether the list of modules can be believed: a loaded driver of a NIC must be in it, or any other module."""
    return c.node.lists_modules


def _kind(device: PciDevice) -> str:
    if not is_rdma_only(device):
        return "RDMA-capable Ethernet"
    return "EFA" if rdma_module(device) == "efa" else "InfiniBand"


def _name(device: PciDevice) -> str:
    return f" {device.device_name}" if isinstance(device.device_name, str) else ""


def _devices(c: Context) -> str:
    rdma = c.node.net.rdma
    return str(rdma) if isinstance(rdma, Missing) else " ".join(d.name for d in rdma) or "(empty)"
