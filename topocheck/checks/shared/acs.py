"""How ACS redirection is switched off, in the words that this machine's kernel knows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from topocheck.checks.registry import Context
from topocheck.checks.shared.common import pci_devices
from topocheck.checks.shared.fixes import Fix, first_fitting, kernel_from, never
from topocheck.gpudirect.inputs import ports_that_redirect
from topocheck.model.base import Missing
from topocheck.model.pci import PciDevice
from topocheck.topology.tree import common_length

_PRICE = "Cost: the devices below are no longer isolated from each other"
_REDIRECTS = 0b1100
_OPTION = r"(?a)disable_acs_redir=([^,\s]+)"


def acs_clear(c: Context, redirecting: Mapping[str, PciDevice], on_way: Iterable[PciDevice]) -> str | None:
    """Return how to clear ReqRedir and CmpltRedir on some ports, now and for good.

    An option for boot must name every port: one that stands there already is replaced by it, and what firmware or a
    script cleared need not be cleared at the next boot.
    """
    first = next(iter(redirecting))
    # VALUE:MASK changes these two bits and keeps what else a port has set (setpci(8)).
    now = (
        f"as root, now and until the next boot, on each of these ports ({', '.join(redirecting)}): setpci -s {first} "
        f"ECAP_ACS+6.w=0:{_REDIRECTS:x}"
    )
    ports = list(
        dict.fromkeys((*_named_at_boot(c), *redirecting, *(p.address for p in on_way if p.acs_capable is True)))
    )
    config = ";".join(f"xxx00xx@{p}" for p in ports)
    redir = ";".join(ports)
    return first_fitting(
        c,
        Fix(f"{now}; for good: in the firmware setup, or a unit at boot. {_PRICE}", (_older_than_4_19,)),
        Fix(
            f"{now}; for good: in the firmware setup, or boot with 'pci=config_acs={config}' (all ports on the way; "
            f"clears ReqRedir and CmpltRedir and leaves the rest). {_PRICE}",
            (kernel_from(6, 11),),
        ),
        Fix(
            f"{now}; for good: in the firmware setup, or boot with 'pci=disable_acs_redir={redir}' (all ports on the "
            f"way; leaves UpstreamFwd set, which does no harm). {_PRICE}",
        ),
    )


def ports_between(c: Context, a: str, b: str) -> tuple[PciDevice, ...]:
    """Return the ports at which ACS has a say in what goes between two devices, below what they share."""
    devices = pci_devices(c)
    ways = [c.topology.chains.get(x, ())[:-1] for x in (a, b)]
    shared = common_length(*ways)
    names = [x for way in ways for x in ports_that_redirect(c.topology, way, shared)]
    return tuple(devices[x] for x in names if x in devices)


def _older_than_4_19(c: Context) -> bool:
    return not isinstance(c.node.system.kernel_release, Missing) and never(kernel_from(4, 19))(c)


def _named_at_boot(c: Context) -> list[str]:
    """Return the ports that the kernel's command line names for pci=disable_acs_redir."""
    options = c.node.system.kernel_options
    found = [] if isinstance(options, Missing) else [m[1] for o in options for m in re.finditer(_OPTION, o)]
    return [p for p in ";".join(found).split(";") if p] if found else []
