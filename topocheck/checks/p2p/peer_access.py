"""GPUDirect P2P: refused by the driver, by MIG, or answered differently by NVML and CUDA."""

from __future__ import annotations

from collections.abc import Iterator

from topocheck.checks.needs import unless_lost
from topocheck.checks.registry import Context, check, not_applicable
from topocheck.checks.shared.common import is_guest, listed, living, named, pair, quote
from topocheck.checks.shared.fixes import Fix, first_fitting, in_container, is_root, never
from topocheck.checks.shared.p2p_pairs import (
    GpuPair,
    cuda_peers,
    devices_of,
    pairs,
    permitted_by_pcie,
    status_evidence,
    subject_of,
)
from topocheck.checks.sources import PEERS, Needs
from topocheck.knowledge.products import p2p_code
from topocheck.model.base import Evidence, Finding, Missing, Reason, State, known
from topocheck.model.gpu import NvmlGpu
from topocheck.topology.paths import product_of
from topocheck.topology.types import Gpu


def _several(context: Context) -> tuple[GpuPair, ...]:
    found = pairs(context)
    if not found:
        raise not_applicable("fewer than two GPUs")
    return found


@check(
    "p2p.refused",
    title="The driver refuses peer access between GPUs",
    severity=State.WARN,
    reads=("NVML DeviceGetP2PStatus (read, write)",),
    needs=Needs((*PEERS,), ("gpu name",)),
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
    unsure = [p for p in found if p.path.nvlinks_untold is not None and not p.path.nvlinks and not p.split]
    if untold and all(p.a.nvml is None or p.b.nvml is None for p in found):
        raise not_applicable("NVML does not answer for these GPUs")
    if untold:
        yield _untold(context, untold)
    for p in found:
        code = p.code
        if not isinstance(code, str) or code == "OK" or p.path.nvlinks or p.split or p in unsure:
            continue
        groups.setdefault((code, *_expected(context, p, code)), []).append(p)
    for (code, state, why), same in groups.items():
        meaning, fix = p2p_code(code, is_guest(context)) or (f"the code {code} is not known here", "update topocheck")
        yield Finding(
            state=state,
            subject=subject_of(same),
            devices=devices_of(same),
            title=f"no peer access between {listed(p.labels for p in same)}: {code}, {meaning}{why}",
            consequence="copies between these GPUs go through host memory, at half the link's rate or less",
            evidence=status_evidence(context, same[:2]),
            rule="NVML's P2P status for read or write is not OK",
            fix=None if why == _PRODUCT else fix,
        )


def _untold(context: Context, found: list[GpuPair]) -> Finding:
    """Return the finding about pairs of which neither NVML nor CUDA says anything, with the reason that NVML gave."""
    why = next((p.code for p in found if isinstance(p.code, Missing)), None)
    denied = why is not None and why.reason is Reason.DENIED
    return Finding(
        state=State.UNKNOWN,
        subject=subject_of(found),
        devices=devices_of(found),
        title=f"neither NVML nor CUDA says whether {listed(p.labels for p in found)} have peer access"
        + (f" ({why})" if why is not None else ""),
        consequence="if they have none, copies go through host memory",
        evidence=status_evidence(context, found[:2]),
        rule="NVML's P2P status for read and write, or CUDA's can-access-peer, must be known",
        fix=first_fitting(context, *(_DENIED if denied else _NOT_TOLD)),
    )


_NOT_TOLD = (Fix("run `topocheck bw`, which copies between the GPUs and compares the bytes; update an old driver"),)
_DENIED = (
    Fix("run topocheck on the node, outside this container: NVML refuses the question here", (in_container, is_root)),
    Fix("run topocheck as root: NVML refuses the question to this user", (never(is_root),)),
    *_NOT_TOLD,
)


def _told(context: Context, p: GpuPair) -> bool:
    """Tell whether NVML or CUDA says anything of a pair."""
    return isinstance(p.code, str) or isinstance(cuda_peers(context).get((p.a.address, p.b.address)), bool)


_PRODUCT = " (as expected: the product is sold without it)"


def _expected(context: Context, p: GpuPair, code: str) -> tuple[State, str]:
    """Return the state of a refusal, and why it is no fault where it is none."""
    products = [product_of(x) for x in (p.a, p.b)]
    if code == "U":
        return State.UNKNOWN, ""
    if code == "DR":
        return unless_lost(context, State.WARN, "mig"), ""
    if p.sold_without:
        return State.NOTE, _PRODUCT
    if context.node.nvml.conf_computing is True:
        return State.NOTE, " (confidential computing is on)"
    if is_guest(context):
        return State.NOTE, " (the hypervisor decides)" if known(context.node.system.hypervisor) else ""
    if code == "TNS" and p.path.pcie_class not in ("PIX", "PXB"):
        return State.NOTE, " (they share no PCIe switch)"
    if None in products or products[0] != products[1]:
        return State.NOTE, ""
    if any(x is not None and x.p2p_pcie is None for x in products):
        return State.NOTE, " (this product has it on some hosts only)"
    return unless_lost(context, State.WARN, "mig", "confidential"), ""


@check(
    "p2p.offered-beyond-product",
    title="The driver offers peer access that the product is sold without",
    severity=State.WARN,
    reads=("NVML DeviceGetP2PStatus (read, write)", "CUDA cuDeviceCanAccessPeer"),
    needs=Needs(PEERS, ("gpu name",)),
)
def offered_beyond_product(context: Context) -> Iterator[Finding]:
    """The driver offers peer access that the product is sold without.

    Looks at:
        Pairs of GPUs of products without peer access over PCIe (GeForce) that NVLink does not join, and for which NVML,
        or else CUDA, says yes.

    Why it matters:
        A patched driver gives it, and some releases offered it by mistake (525 to 530 on GeForce 40): jobs then hang at
        full utilisation, or data arrives wrong, while every status says OK.

    Fix:
        Prove each pair with `topocheck bw`, which compares the bytes, before trusting it; else NCCL_P2P_DISABLE=1, or
        a driver that does not offer it.

    Does not apply:
        Products sold with peer access over PCIe, and pairs joined by NVLink.
    """
    found = [p for p in _several(context) if not p.path.nvlinks and p.sold_without]
    if not found:
        raise not_applicable("no pair of GPUs that is sold without peer access over PCIe")
    permitted = {p.labels for p in permitted_by_pcie(context)}
    offered = [p for p in found if p.labels in permitted]
    if not offered:
        return
    cuda = cuda_peers(context)
    a, b = offered[0].a, offered[0].b
    said = cuda.get((a.address, b.address))
    yield Finding(
        state=unless_lost(context, State.WARN, "mig"),
        subject=subject_of(offered),
        devices=devices_of(offered),
        title=f"peer access is offered between {listed(p.labels for p in offered)}, and {a.name} is sold without it",
        consequence="jobs may hang, or data arrive wrong, while every status says OK",
        evidence=status_evidence(context, offered[:2])
        + (_cuda_evidence(context, a, b, said) if isinstance(said, bool) else ())
        + context.node.system.evidence("/proc/driver/nvidia/version"),
        rule="the driver offers peer access only where the product has it",
        fix="prove each pair with `topocheck bw`, which compares the bytes, before trusting it; else "
        "NCCL_P2P_DISABLE=1 (copies through host memory), or a driver release that does not offer it",
    )


@check(
    "p2p.mig",
    title="MIG disables peer access",
    severity=State.NOTE,
    reads=("NVML DeviceGetMigMode",),
)
def mig(context: Context) -> Iterator[Finding]:
    """MIG disables peer access.

    Looks at:
        The MIG mode of each GPU, current and pending.

    Why it matters:
        A slice has no peer access and no NVLink, so a job over several slices communicates through host
        memory, and NCCL
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
            state=State.NOTE,
            subject=named(gpu),
            devices=(gpu.address,),
            title=f"MIG is on ({_slices(nvml)}), so it has no peer access and no NVLink",
            consequence="a job over several GPUs that uses it communicates through host memory",
            evidence=quote(nvml, "DeviceGetMigMode", "on"),
            rule="MIG devices offer no peer access (NVIDIA MIG User Guide)",
            fix=f"nvidia-smi -i {nvml.index} -mig 0, if jobs over several GPUs are to run here (ends all that runs "
            "on it)",
        )


def _slices(nvml: NvmlGpu) -> str:
    if nvml.mig_untold is not None and not nvml.mig_instances:
        return f"NVML does not list the slices: {nvml.mig_untold}"
    n = len(nvml.mig_instances)
    return f"{n} slice{'' if n == 1 else 's'}"


@check(
    "p2p.peer-access-disagrees",
    title="NVML and CUDA say different things about peer access",
    severity=State.WARN,
    reads=("NVML DeviceGetP2PStatus", "CUDA cuDeviceCanAccessPeer"),
    needs=Needs((*PEERS,)),
)
def disagrees(context: Context) -> Iterator[Finding]:
    """NVML and CUDA say different things about peer access.

    Looks at:
        NVML's P2P status against cuDeviceCanAccessPeer, for every pair where both answered.

    Why it matters:
        NCCL asks NVML, frameworks ask CUDA. Where the two differ one of them plans with a path that is not there;
        copies then fail, or go the slow way unseen. Seen with patched drivers and half-finished upgrades.

    Fix:
        Install one version of the kernel module and the user libraries, and reboot. Prove the pair with a checked
        copy (`topocheck bw`).

    Does not apply:
        Where one of the two was not asked: no CUDA driver, or devices hidden by CUDA_VISIBLE_DEVICES.
    """
    cuda = cuda_peers(context)
    compared = False
    for p in _several(context):
        peer = cuda.get((p.a.address, p.b.address))
        code = p.code
        if not isinstance(peer, bool) or not isinstance(code, str) or p.split:
            continue
        compared = True
        if peer is not (code == "OK"):
            yield Finding(
                state=State.WARN,
                subject=pair(p.a, p.b),
                devices=(p.a.address, p.b.address),
                title=f"NVML says {code}, CUDA says {'yes' if peer else 'no'}",
                consequence="one of NCCL and the framework plans with a path that is not there",
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
