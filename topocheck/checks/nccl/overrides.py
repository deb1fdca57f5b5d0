"""NCCL's settings that force what NCCL would rather choose by itself."""

from __future__ import annotations

from collections.abc import Iterator

from topocheck.checks.needs import unless_lost
from topocheck.checks.registry import Context, Scope, check, not_applicable
from topocheck.checks.shared.settings import (
    in_force,
    judged_version,
    place,
    quoted,
    values,
)
from topocheck.checks.sources import GPUS, Needs
from topocheck.model.base import Evidence, Finding, State, known
from topocheck.topology.paths import joined_to_cpu

_READS = ("environment NCCL_*", "NCCL_CONF_FILE or ~/.nccl.conf", "/etc/nccl.conf")


@check(
    "nccl.nvls-forced",
    title="NCCL_NVLS_ENABLE=1 skips the question whether multicast works",
    severity=State.WARN,
    reads=_READS,
    needs=Needs(("settings", "nccl"), ("cuda",)),
    scope=Scope.PROCESS,
)
def nvls_forced(c: Context) -> Iterator[Finding]:
    """NCCL_NVLS_ENABLE is pinned to 1.

    Looks at: the setting, the NCCL version, and whether CUDA says that the GPUs have multicast.

    Why it matters: the value 2, the default since 2.18, asks the driver first. With 1 the question is left out, and
    init fails in a container or on a machine whose fabric does not allow it.

    Fix: `unset NCCL_NVLS_ENABLE`. As a probe 0 is right, 1 never is.

    Does not apply: NCCL 2.17, whose default is 1; other values.
    """
    s = in_force(c).get("NCCL_NVLS_ENABLE")
    if s is None or not values(c).is_one("NCCL_NVLS_ENABLE"):
        raise not_applicable("NCCL_NVLS_ENABLE is not 1")
    if judged_version(c) < (2, 18, 1):
        raise not_applicable("1 is the default of this NCCL")
    said = {g.cuda.multicast for g in c.topology.gpus if g.cuda is not None}
    able = said == {True}
    yield Finding(
        state=State.NOTE if able else unless_lost(c, State.WARN, "cuda", "nvml"),
        subject=place(s),
        title=f"NCCL_NVLS_ENABLE={s.value} is forced; CUDA says that multicast is "
        + ("there" if able else "not there" if False in said else "not known"),
        consequence="NCCL does not ask whether it works, and init fails where it does not",
        evidence=quoted(s),
        rule="2, the default: used where it works",
        fix="unset NCCL_NVLS_ENABLE",
    )


@check(
    "nccl.ll128-forced",
    title="The LL128 protocol is forced",
    severity=State.WARN,
    reads=_READS,
    needs=Needs(("settings",), ("nccl", *GPUS)),
    scope=Scope.PROCESS,
)
def ll128_forced(c: Context) -> Iterator[Finding]:
    """NCCL_PROTO names LL128, or NCCL_LL128_C2C forces it on a machine with C2C.

    Looks at: NCCL_PROTO, NCCL_LL128_C2C, and whether GPUs are joined to their CPU by C2C.

    Why it matters: LL128 needs stores of 128 bytes that arrive whole on all of the way. NCCL knows where that holds;
    by force it may be used elsewhere, and results are silently wrong.

    Fix: unset it.

    Does not apply: lists that exclude (`^LL128`).
    """
    settings = in_force(c)
    proto, c2c = settings.get("NCCL_PROTO"), settings.get("NCCL_LL128_C2C")
    if proto is None and c2c is None:
        raise not_applicable("neither NCCL_PROTO nor NCCL_LL128_C2C is set")
    found = []
    if proto is not None and _names_ll128(proto.value):
        found.append(proto)
    if c2c is not None and values(c).is_one("NCCL_LL128_C2C") and any(joined_to_cpu(g) for g in c.topology.gpus):
        found.append(c2c)
    for s in found:
        yield Finding(
            state=State.WARN if s is proto else unless_lost(c, State.WARN, "nccl"),
            subject=place(s),
            title=f"{s.name}={s.value} forces LL128",
            consequence="where 128-byte stores do not arrive whole, results are wrong without an error",
            evidence=quoted(s),
            rule="NCCL chooses LL128 where it is safe",
            fix=f"unset {s.name}",
        )


def _names_ll128(text: str) -> bool:
    """Tell whether a list such as `allreduce:LL128,Simple;^LL` asks for LL128 somewhere."""
    for part in text.split(";"):
        words = part.rpartition(":")[2]
        if not words.startswith("^") and "ll128" in words.lower().split(","):
            return True
    return False


@check(
    "nccl.disabled-p2p-ignored",
    title="NCCL is set to ignore an NVLink fault",
    severity=State.WARN,
    reads=_READS,
    needs=Needs(("settings",)),
    scope=Scope.PROCESS,
)
def disabled_p2p_ignored(c: Context) -> Iterator[Finding]:
    """NCCL_IGNORE_DISABLED_P2P is set.

    Looks at: the setting, and what NVML says of pairs that NVLink joins.

    Why it matters: NCCL stops where NVLink joins two GPUs and the driver refuses peer access, since that is a fault
    of hardware or of the fabric. The setting hides it, and the pair goes a slow way.

    Fix: `unset NCCL_IGNORE_DISABLED_P2P`; check the fabric manager, reset the GPUs, or call for service.

    Does not apply: where it is unset or 0.
    """
    s = in_force(c).get("NCCL_IGNORE_DISABLED_P2P")
    if s is None or not values(c).nonzero("NCCL_IGNORE_DISABLED_P2P"):
        raise not_applicable("NCCL_IGNORE_DISABLED_P2P is not set")
    joined = {(p.from_, p.to) for p in c.topology.paths if p.nvlinks}
    refused = [
        x for x in c.node.nvml.p2p if (x.from_address, x.to_address) in joined and known(x.read) and x.read != "OK"
    ]
    more = f"; NVML refuses {len(refused)} pairs that NVLink joins" if refused else ""
    yield Finding(
        state=State.WARN,
        subject=place(s),
        title=f"NCCL_IGNORE_DISABLED_P2P={s.value} hides NVLink faults{more}",
        consequence="a pair with broken NVLink goes the slow way, and nothing reports it",
        evidence=(
            *quoted(s),
            *(Evidence(f"NVML P2P status {x.from_address} {x.to_address}", str(x.read)) for x in refused[:2]),
        ),
        rule="unset, so that NCCL stops at a fault",
        fix="unset NCCL_IGNORE_DISABLED_P2P; check the fabric manager, reset the GPUs, or call for service",
    )
