"""Names of checks that version 0.1.0 had and that are others now; the old ones are understood until 1.0.

An id is never given to another check, so an old id means the same check wherever it was written: in a policy, on a
command line, in a stored report.
"""

from __future__ import annotations

CHECKS = {
    "bw.far-memory": "bw.far-numa",
    "bw.silent-node": "network.unresponsive-node",
    "bw.slow-link": "network.slow-link",
    "bw.slow-node": "network.slow-node",
    "bw.uneven-directions": "network.uneven-directions",
    "bw.unmeasured-pairs": "network.unmeasured-pairs",
    "consistency.smi-vs-ours": "consistency.smi-matrix-differs",
    "driver.gpu-given-away": "driver.gpu-bound-to-vfio",
    "nccl.hca-left-out": "nccl.hca-excluded",
    "p2p.unproven-across-host-bridges": "p2p.unverified-across-host-bridges",
    "p2p.unproven-in-guest": "p2p.unverified-in-guest",
    "pcie.slot-weaker-than-card": "pcie.slot-below-card",
    "rdma.no-road": "rdma.no-gdr-path",
}
"""Old id of a check -> its id."""


def current(check_id: str) -> str:
    """Return the id of a check that may be called by its old one."""
    return CHECKS.get(check_id, check_id)


def notice(old: str, new: str) -> str:
    """Return what is said where an old name was used."""
    return f"{old} is an old name of {new}, and is understood until topocheck 1.0"
