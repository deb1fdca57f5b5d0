"""GPUDirect P2P: refused by the driver, by MIG, or answered differently by NVML and CUDA."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from topocheck.checks.p2p_pairs import GpuPair, pairs
from topocheck.checks.registry import Context, check, not_applicable
from topocheck.checks.subjects import is_guest, listed, living, named, pair, quote
from topocheck.gpudirect.p2p import sold_without
from topocheck.knowledge.products import p2p_code
from topocheck.model.base import Evidence, Finding, Missing, State, known
from topocheck.topology.paths import product_of
from topocheck.topology.types import Gpu


def _several(context: Context) -> list[GpuPair]:
    found = pairs(context)
    if not found:
        raise not_applicable("fewer than two GPUs")
    return found


def status_evidence(context: Context, found: Iterable[GpuPair]) -> tuple[Evidence, ...]:
    """Quote NVML's read and write status of some pairs."""
    out: tuple[Evidence, ...] = ()
    for p in found:
        if p.status is not None:
            for number, word in enumerate((p.status.read, p.status.write)):
                out += quote(context.node.nvml, f"DeviceGetP2PStatus({p.a.index}, {p.b.index}, {number})", word)
    return out


def subject_of(found: list[GpuPair]) -> str:
    """Return the pair where there is one, else `node`."""
    return pair(found[0].a, found[0].b) if len(found) == 1 else "node"


@check(
    "p2p.refused",
    title="The driver refuses peer access between GPUs",
    severity=State.WARN,
    reads=("NVML DeviceGetP2PStatus (read, write)",),
)
def refused(context: Context) -> Iterator[Finding]:
    """The driver refuses peer access between GPUs.

    Looks at:
        NVML's P2P status for reads and writes of every pair that no NVLink joins, and whether the product is sold
        with peer access over PCIe.

    Why it matters:
        Without it every copy between two GPUs is staged through host memory: half the bandwidth or less, more
        latency, and NCCL uses shared memory instead.

    Fix:
        By the code. CNS (chipset) and TNS (topology): update the driver, place both GPUs under one root complex.
        DR: remove the registry key from NVreg_RegistryDwords. GNS (GPU) and NS: the product has no peer access; no
        setting helps.

    Does not apply:
        Where NVLink joins the pair (`nvlink.p2p-disabled`) or MIG splits a GPU (`p2p.mig`). Products sold without
        peer access (GeForce; no driver or setting helps), TNS between GPUs that share no PCIe switch, guests, GPUs
        of different models and confidential computing are only noted.
    """
    groups: dict[tuple[str, State, str], list[GpuPair]] = {}
    found = _several(context)
    untold = [p for p in found if not p.split and not _told(context, p)]
    if untold and all(p.a.nvml is None or p.b.nvml is None for p in found):
        raise not_applicable("NVML does not answer for these GPUs")
    if untold:
        yield Finding(
            id="p2p.refused",
            state=State.UNKNOWN,
            subject=subject_of(untold),
            title=f"neither NVML nor CUDA says whether {listed(p.labels for p in untold)} have peer access",
            consequence="if they have none, copies go through host memory",
            evidence=status_evidence(context, untold[:2]),
            rule="NVML's P2P status for read and write, or CUDA's can-access-peer, must be told",
            fix="update the driver, or try it with a checked copy (`topocheck bw`)",
        )
    for p in found:
        code = p.code
        if not isinstance(code, str) or code == "OK" or p.path.nvlinks or p.split:
            continue
        groups.setdefault((code, *_expected(context, p, code)), []).append(p)
    for (code, state, why), same in groups.items():
        meaning, fix = p2p_code(code) or (f"the code {code} is not known here", "update topocheck")
        yield Finding(
            id="p2p.refused",
            state=state,
            subject=subject_of(same),
            title=f"no peer access between {listed(p.labels for p in same)}: {code}, {meaning}{why}",
            consequence="copies between these GPUs go through host memory, at half the link's rate or less",
            evidence=status_evidence(context, same[:2]),
            rule="NVML's P2P status for read or write is not OK",
            fix=None if why == _PRODUCT else fix,
        )


def _told(context: Context, p: GpuPair) -> bool:
    """Tell whether NVML or CUDA says anything of a pair."""
    peers = context.node.cuda.peers
    asked = any((c.from_address, c.to_address) == (p.a.address, p.b.address) and known(c.can_access) for c in peers)
    return isinstance(p.code, str) or asked


_PRODUCT = " (as expected: the product is sold without it)"


def _expected(context: Context, p: GpuPair, code: str) -> tuple[State, str]:
    """Return the state of a refusal, and why it is no fault where it is none."""
    products = [product_of(x) for x in (p.a, p.b)]
    if code == "U":
        return State.UNKNOWN, ""
    if code == "DR":
        return State.WARN, ""
    if sold_without(p.a, p.b):
        return State.NOTE, _PRODUCT
    if context.node.nvml.conf_computing is True:
        return State.NOTE, " (confidential computing is on)"
    if is_guest(context):
        return State.NOTE, " (the hypervisor decides)"
    if code == "TNS" and p.path.pcie_class not in ("PIX", "PXB"):
        return State.NOTE, " (they share no PCIe switch)"
    if None in products or products[0] != products[1]:
        return State.NOTE, ""
    if any(x is not None and x.p2p_pcie is None for x in products):
        return State.NOTE, " (this product has it on some hosts only)"
    return State.WARN, ""


@check(
    "p2p.mig",
    title="MIG takes peer access away",
    severity=State.NOTE,
    reads=("NVML DeviceGetMigMode",),
)
def mig(context: Context) -> Iterator[Finding]:
    """MIG takes peer access away.

    Looks at:
        The MIG mode of each GPU, current and pending.

    Why it matters:
        A slice has no peer access and no NVLink, so a job over several slices talks through host memory, and NCCL
        refuses two slices of one GPU.

    Fix:
        For jobs over several GPUs switch MIG off: `nvidia-smi -i N -mig 0`. This ends everything that runs there.

    Does not apply:
        With one GPU, or where MIG is off: a node that serves slices to single jobs is healthy.
    """
    gpus = [g for g in living(context) if g.nvml is not None]
    if len(gpus) < 2:
        raise not_applicable("fewer than two GPUs")
    for gpu in gpus:
        nvml = gpu.nvml
        if nvml is None or nvml.mig_current is not True:
            continue
        yield Finding(
            id="p2p.mig",
            state=State.NOTE,
            subject=named(gpu),
            title=f"MIG is on ({len(nvml.mig_instances)} slices), so it has no peer access and no NVLink",
            consequence="a job over several GPUs that uses it talks through host memory",
            evidence=quote(nvml, "DeviceGetMigMode", "on"),
            rule="MIG devices offer no peer access (NVIDIA MIG User Guide)",
            fix=f"nvidia-smi -i {nvml.index} -mig 0, if jobs over several GPUs are to run here (ends all that runs "
            "on it)",
        )


@check(
    "p2p.peer-access-disagrees",
    title="NVML and CUDA say different things about peer access",
    severity=State.WARN,
    reads=("NVML DeviceGetP2PStatus", "CUDA cuDeviceCanAccessPeer"),
)
def disagrees(context: Context) -> Iterator[Finding]:
    """NVML and CUDA say different things about peer access.

    Looks at:
        NVML's P2P status against cuDeviceCanAccessPeer, for every pair where both answered.

    Why it matters:
        NCCL asks NVML, frameworks ask CUDA. Where the two differ one of them plans with a road that is not there;
        copies then fail, or go the slow way unseen. Seen with patched drivers and half-finished upgrades.

    Fix:
        Install one version of the kernel module and the user libraries, and reboot. Prove the pair with a checked
        copy (`topocheck bw`).

    Does not apply:
        Where one of the two was not asked: no CUDA driver, or devices hidden by CUDA_VISIBLE_DEVICES.
    """
    cuda = {(p.from_address, p.to_address): p.can_access for p in context.node.cuda.peers}
    compared = False
    for p in _several(context):
        peer = cuda.get((p.a.address, p.b.address))
        code = p.code
        if not isinstance(peer, bool) or not isinstance(code, str) or p.split:
            continue
        compared = True
        if peer is not (code == "OK"):
            yield Finding(
                id="p2p.peer-access-disagrees",
                state=State.WARN,
                subject=pair(p.a, p.b),
                title=f"NVML says {code}, CUDA says {'yes' if peer else 'no'}",
                consequence="one of NCCL and the framework plans with a road that is not there",
                evidence=status_evidence(context, [p]) + _cuda_evidence(context, p.a, p.b, peer),
                rule="NVML's status is OK exactly where CUDA can access the peer",
                fix="install one version of driver and libraries and reboot; prove the pair with `topocheck bw`",
            )
    if not compared:
        raise not_applicable("NVML and CUDA did not both answer for any pair")


def _cuda_evidence(context: Context, a: Gpu, b: Gpu, peer: bool) -> tuple[Evidence, ...]:
    ordinals = [x.cuda.ordinal if x.cuda is not None else Missing for x in (a, b)]
    name = f"DeviceCanAccessPeer({ordinals[0]}, {ordinals[1]})"
    return quote(context.node.cuda, name, peer)
