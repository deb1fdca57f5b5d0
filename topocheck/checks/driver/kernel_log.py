"""What the kernel's log says of GPUs and NICs, where it may be read."""

from __future__ import annotations

from collections.abc import Iterator

from topocheck.checks.registry import Context, check, not_applicable
from topocheck.checks.shared.common import ends, named
from topocheck.checks.shared.driver_start import not_used
from topocheck.checks.shared.fixes import Fix, first_fitting, in_guest
from topocheck.knowledge.xids import XIDS
from topocheck.model.base import Evidence, Finding, Missing, State
from topocheck.model.kernel_log import OFF_THE_BUS, lost, nic_trouble, not_started, pcie_error, refusal, xid
from topocheck.topology.types import Gpu, Nic


@check(
    "driver.kernel-log-errors",
    title="The kernel's log has hardware errors of a GPU or NIC",
    severity=State.NOTE,
    reads=("/dev/kmsg: NVRM Xid and RmInitAdapter lines, AER, DPC, mlx5_core and bnxt_en",),
)
def kernel_log_errors(c: Context) -> Iterator[Finding]:
    """The kernel's log has hardware errors of a GPU or NIC.

    Looks at:
        Lines of the kernel's log since the last boot: Xid numbers of NVIDIA's driver that report hardware
        errors, GPUs that it could not start or that have fallen off the bus, messages of NVIDIA's and
        Broadcom's NICs about health, slot power, transceivers and firmware that does not answer, and
        uncorrectable PCIe errors (AER) and containment (DPC) of GPUs, NICs and the ports above them. Reading
        the log needs root on most systems.

    Why it matters:
        Such a device fails again, and a job on all GPUs of the node fails with it.

    Fix:
        Drain the node, reset the GPU or reboot, and run NVIDIA's diagnostics (dcgmi diag); an error that comes back
        needs service.

    Does not apply:
        Where the log cannot be read. A note only, as lines are those since boot: an error that was put right by a reset
        stays there. A warning where a memory row could not be remapped (Xid 64), which no reset puts right.
    """
    lines = c.node.system.kernel_log
    if isinstance(lines, Missing):
        raise not_applicable(f"the kernel's log cannot be read ({lines.reason.value.replace('_', ' ')})")
    unlisted = _of_unlisted(c, lines)
    if not c.topology.gpus and not c.topology.nics and not unlisted:
        raise not_applicable("no NVIDIA GPU and no RDMA NIC")
    for gpu in c.topology.gpus:
        numbers = [(x[1], line) for line in lines if (x := xid(line)) and x[0] == gpu.address.rpartition(".")[0]]
        for number in dict.fromkeys(n for n, _ in numbers if n in XIDS):
            shown = [line for n, line in numbers if n == number]
            state = State.WARN if number in _LASTING else State.NOTE
            yield _finding(c, gpu, f"Xid {number}: {XIDS[number]} (kernel log since boot)", shown[-1], state)
        if OFF_THE_BUS not in {n for n, _ in numbers}:
            gone = [line for line in lines if lost(line) == gpu.address.rpartition(".")[0]]
            if gone:
                yield _finding(c, gpu, f"{XIDS[OFF_THE_BUS]} (kernel log since boot)", gone[-1])
        if shown := [line for line in lines if not_started(line) == gpu.address]:
            yield _finding(c, gpu, "the driver could not start it (kernel log since boot)", shown[-1])
    for nic in c.topology.nics:
        found = {t[1]: line for line in lines if (t := nic_trouble(line)) and t[0] == nic.address}
        for kind, line in found.items():
            what, fix = _NIC_TROUBLES[kind]
            yield _finding(c, nic, f"{what} (kernel log since boot)", line, fix=fix)
    yield from _pcie(c, lines)
    yield from unlisted


def _of_unlisted(c: Context, lines: tuple[str, ...]) -> list[Finding]:
    """Return what texts say of devices that none of them lists: the log may have lost what it said at the start.

    Of a machine whose PCI functions are all known, such a line is of a device that it no longer has.
    """
    made = c.node.made_from
    if made is None or not (made.selection or isinstance(c.node.pci.devices, Missing)):
        return []
    listed = {g.address for g in c.topology.gpus} | {n.address for n in c.topology.nics}
    slots = {a.rpartition(".")[0] for a in listed}
    last: dict[tuple[str, str], tuple[str, State, str | None]] = {}
    for line in lines:
        if (x := xid(line)) and x[0] not in slots and x[1] in XIDS:
            state = State.WARN if x[1] in _LASTING else State.NOTE
            last[x[0], f"Xid {x[1]}: {XIDS[x[1]]}"] = line, state, None
        elif (r := refusal(line)) and r.address not in listed:
            used = not_used(c, r.why, r.branch, ())
            last[r.address or "node", f"the driver does not use it: {used.title}"] = line, State.WARN, used.fix
        elif (slot := lost(line)) and slot not in slots:
            last[slot, XIDS[OFF_THE_BUS]] = line, State.NOTE, None
        elif (address := not_started(line)) and address not in listed:
            last[address, "the driver could not start it"] = line, State.NOTE, None
        elif (t := nic_trouble(line)) and t[0] not in listed:
            what, fix = _NIC_TROUBLES[t[1]]
            last[t[0], what] = line, State.NOTE, fix
    return [
        _about(c, address, address, f"{what} (kernel log since boot)", line, state, fix)
        for (address, what), (line, state, fix) in last.items()
    ]


_LASTING = frozenset({64})
"""Xids that a reset does not put right."""


def _pcie(c: Context, lines: tuple[str, ...]) -> Iterator[Finding]:
    """Uncorrectable errors and containment of devices, and of the ports above them, each once with its last line."""
    where: dict[str, str] = {}
    for device in ends(c):
        where[device.address] = named(device)
        for element in c.topology.chains.get(device.address, ())[:-1]:
            where.setdefault(element, f"{element} (port above {device.label})")
    last: dict[tuple[str, str], str] = {}
    for line in lines:
        found = pcie_error(line)
        if found is not None and found[0] in where:
            last[found] = line
    for (address, what), line in last.items():
        yield _about(c, where[address], address, f"{what} (kernel log since boot)", line, State.NOTE)


_NIC_TROUBLES: dict[str, tuple[str, str | None]] = {
    "power": (
        "its slot gives it too little power",
        "check the slot's power limit in the firmware setup, the card's own power cable and the BMC; the ports of "
        "such a card may stay down",
    ),
    "module": ("a fault of its cable or transceiver", "clean, reseat or swap cable and transceiver of this port"),
    "command": ("its firmware did not answer a command", None),
    "health": ("its driver reports a health problem", None),
}
"""What a NIC's driver reports -> (title, what to do, where it is not the usual)."""


def _finding(
    c: Context, device: Gpu | Nic, title: str, line: str, state: State = State.NOTE, fix: str | None = None
) -> Finding:
    return _about(c, named(device), device.address, title, line, state, fix)


def _about(
    c: Context, subject: str, address: str, title: str, line: str, state: State, fix: str | None = None
) -> Finding:
    return Finding(
        state=state,
        subject=subject,
        devices=() if address == "node" else (address,),
        title=title,
        consequence="it may fail again, and a job on this node with it",
        evidence=(Evidence("kernel log", line),),
        rule="no hardware error in the kernel's log since boot",
        fix=fix if fix is not None and not in_guest(c) else first_fitting(c, *_FIXES),
    )


_FIXES = (
    Fix("drain the guest and have its host check the device", (in_guest,)),
    Fix("drain the node, reset the device or reboot, then run dcgmi diag -r 3; if it comes back, have it serviced"),
)
