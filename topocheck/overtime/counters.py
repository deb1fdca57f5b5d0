"""Counters: how wide they are, and what they do at their end.

Widths: InfiniBand Architecture Specification, volume 1, PortCounters and PortCountersExtended (a counter of a port
stays at its maximum); mlx5's queue counters are 32-bit words that wrap (Linux drivers/infiniband/hw/mlx5/counters.c);
nvmlDeviceGetPcieReplayCounter gives an unsigned int; AER counters (Linux drivers/pci/pcie/aer.c, aer_stats) and NVML's
field values are 64-bit; carrier_down_count is an atomic_t (Linux net/core/net-sysfs.c).
"""

from __future__ import annotations

import msgspec

from topocheck.overtime.types import Kind


class Width(msgspec.Struct, frozen=True):
    """Bits of a counter, and whether it stays at its maximum instead of wrapping."""

    bits: int
    saturates: bool = False


_WIDE = Width(64)
_WIDTHS = {
    (Kind.GPU, "pcie_replays"): Width(32),
    (Kind.PORT, "symbol_error"): Width(16, saturates=True),
    (Kind.PORT, "link_error_recovery"): Width(8, saturates=True),
    (Kind.PORT, "link_downed"): Width(8, saturates=True),
    (Kind.PORT, "carrier_down_count"): Width(32),
    (Kind.PORT, "port_rcv_errors"): Width(16, saturates=True),
    (Kind.PORT, "port_xmit_discards"): Width(16, saturates=True),
    (Kind.PORT, "local_link_integrity_errors"): Width(4, saturates=True),
    (Kind.PORT, "out_of_sequence"): Width(32),
    (Kind.PORT, "packet_seq_err"): Width(32),
    (Kind.PORT, "local_ack_timeout_err"): Width(32),
}


def width(kind: Kind, name: str) -> Width:
    """Return what is known of a counter; 64 bits that wrap where nothing is."""
    return _WIDTHS.get((kind, name), _WIDE)
