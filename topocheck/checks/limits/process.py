"""Limits of this process: shared memory, locked memory, open files, stack."""

from __future__ import annotations

from collections.abc import Iterator

from topocheck.checks.needs import unless_lost
from topocheck.checks.registry import Context, Scope, check, not_applicable
from topocheck.checks.shared.common import listed
from topocheck.checks.shared.settings import (
    active_nics,
    dotted,
    in_force,
    installed_version,
    no_active_nic,
    version_evidence,
)
from topocheck.checks.sources import GPUS, Needs
from topocheck.model.base import Evidence, Finding, Missing, Reason, State, Verdict, known
from topocheck.model.units import size_text

_MIB, _GIB = 1 << 20, 1 << 30


def _quote(c: Context, name: str, value: object) -> tuple[Evidence, ...]:
    return c.node.limits.evidence(name) or (Evidence(name, str(value)),)


def _inside(c: Context) -> bool:
    return known(c.node.system.container)


@check(
    "limits.shm-small",
    title="/dev/shm is too small for NCCL",
    severity=State.WARN,
    reads=("statvfs /dev/shm", "GPUDirect P2P verdicts"),
    needs=Needs(GPUS, ("shared memory",)),
    scope=Scope.PROCESS,
    thresholds=("min_bytes",),
)
def shm_small(c: Context) -> Iterator[Finding]:
    """/dev/shm is small, or nearly full, and GPUs need it to talk.

    Looks at:
        The size and the free part of /dev/shm, and which GPU pairs have no peer access. Threshold `min_bytes`:
        1 GiB, what NCCL's guide asks for in containers; each connection takes about 9 MiB.

    Why it matters:
        NCCL ends with "failed to extend /dev/shm/nccl-...", or the process dies of a bus error. Docker gives 64 MiB.

    Fix:
        `docker run --shm-size=1g` or `--ipc=host`; in Kubernetes an emptyDir with medium Memory at /dev/shm.

    Does not apply:
        With fewer than two GPUs. Where every pair has peer access NCCL barely uses it, and it is a note.
    """
    total, free = c.node.limits.shm_total_bytes, c.node.limits.shm_free_bytes
    if len(c.topology.gpus) < 2:
        raise not_applicable("fewer than two NVIDIA GPUs")
    if isinstance(total, Missing):
        title = f"the size of /dev/shm cannot be determined: {total}"
        yield Finding(state=State.UNKNOWN, subject="/dev/shm", title=title)
        return
    least = c.threshold("limits.shm-small", "min_bytes", _GIB)
    short = total < least
    left = free if not isinstance(free, Missing) else total
    full = left < min(64 * _MIB, total / 10)
    if not short and not full:
        return
    verdicts = [v.verdict for v in c.gpudirect.p2p]
    # Degraded is peer access across host bridges, which NCCL leaves alone by default and uses shared memory.
    without = sum(v in (Verdict.NO, Verdict.DEGRADED) for v in verdicts)
    unsure = sum(v is Verdict.UNKNOWN for v in verdicts)
    state = State.WARN if without else State.UNKNOWN if unsure else State.NOTE
    if without:
        need = f"{without // 2 or without} of {len(verdicts) // 2} GPU pairs have no confirmed peer access and need it"
    elif unsure:
        need = f"whether {unsure // 2} GPU pairs need it is not sure"
    else:
        need = "every GPU pair has peer access, so NCCL barely uses it"
    what = f"is {size_text(total)}" if short else f"has {size_text(left)} free of {size_text(total)}"
    yield Finding(
        state=state,
        subject="/dev/shm",
        title=f"/dev/shm {what}; {need}",
        consequence="NCCL ends with `failed to extend /dev/shm/nccl-...`, or a process dies of a bus error"
        if state is not State.NOTE
        else "data loaders with many workers may still run out of it",
        evidence=_quote(c, "statvfs /dev/shm", f"{total} bytes"),
        rule=f"at least {size_text(least)}, and some of it free",
        fix="docker run --shm-size=1g, or --ipc=host (shares memory with the host); in Kubernetes an emptyDir with "
        "medium Memory at /dev/shm"
        if _inside(c)
        else "mount -o remount,size=50% /dev/shm (as root; it uses memory only as it fills)"
        if short
        else "remove what nobody uses any more; see limits.shm-leftovers",
    )


@check(
    "limits.shm-leftovers",
    title="Shared memory of NCCL was left behind",
    severity=State.WARN,
    reads=("/dev/shm/nccl-*",),
    needs=Needs(("shared memory",)),
    scope=Scope.PROCESS,
    thresholds=("min_age_s",),
)
def shm_leftovers(c: Context) -> Iterator[Finding]:
    """Files /dev/shm/nccl-* of jobs that ended badly take up memory.

    Looks at:
        Files older than `min_age_s` (an hour), their sizes and owners, against the size of /dev/shm.

    Why it matters:
        They hold memory until a reboot. When /dev/shm is full the next job does not start.

    Fix:
        Where no job runs: `rm /dev/shm/nccl-*` of your own user. NCCL removes its files at once, so that those of a
        running job are rarely seen.

    Does not apply:
        Younger files, which may belong to a job that just starts.
    """
    files, total = c.node.limits.shm_leftovers, c.node.limits.shm_total_bytes
    if isinstance(files, Missing):
        raise not_applicable(f"/dev/shm cannot be listed: {files}")
    age = c.threshold("limits.shm-leftovers", "min_age_s", 3600)
    old = [f for f in files if f[3] >= age]
    if not old:
        return
    held = sum(f[1] for f in old)
    share = held / total if known(total) and total else 0.0
    owners = sorted({f[2] for f in old})
    more = c.node.limits.shm_leftovers_unlisted
    yield Finding(
        state=State.WARN if share > 0.5 else State.NOTE,
        subject="/dev/shm",
        title=f"{len(old) + more} files /dev/shm/nccl-* older than {age / 3600:g} h hold {size_text(held)}"
        + (f" of {size_text(total)}" if known(total) else ""),
        consequence="they hold memory, and when /dev/shm is full the next job does not start",
        evidence=tuple(Evidence(f"/dev/shm/{n}", f"{s} bytes, uid {u}, {a} s old") for n, s, u, a in old[:4]),
        rule=f"no file of NCCL's older than {age / 3600:g} h, and at most half of /dev/shm",
        fix=f"where no job of uid {listed(map(str, owners))} runs: rm /dev/shm/nccl-* as that user",
    )


@check(
    "limits.memlock",
    title="Locked memory is limited on a node with RDMA NICs",
    severity=State.FAIL,
    reads=(
        "/proc/self/limits Max locked memory",
        "/proc/self/status CapEff",
        "/sys/class/infiniband",
        "/dev/infiniband",
    ),
    needs=Needs(("rdma",), ("limits", "status", "verbs")),
    scope=Scope.PROCESS,
    thresholds=("fail_bytes",),
)
def memlock(c: Context) -> Iterator[Finding]:
    """The limit of locked memory is too low to register memory with an RDMA NIC.

    Looks at:
        The soft limit of this process in bytes (`ulimit -l` prints KiB), its capability IPC_LOCK, which lifts the
        limit, and whether a NIC has an active port. Threshold `fail_bytes`: 1 GiB.

    Why it matters:
        ibv_reg_mr, or the making of a queue pair, fails with "cannot allocate memory", and the job ends.

    Fix:
        Unlimited, in limits.conf *and* in the unit of what starts jobs (slurmd: `LimitMEMLOCK=infinity`; Docker:
        `--ulimit memlock=-1`), then a new login: a running session keeps its limit.

    Does not apply:
        Without an active RDMA NIC; a few MiB are then many systems' default. A note where this process has none of the
        devices under /dev/infiniband (`rdma.verbs-device-missing`): it registers nothing until it is given them.
    """
    nics = active_nics(c)
    rdma = c.node.net.rdma
    hidden = isinstance(rdma, Missing) and rdma.reason is not Reason.ABSENT
    if not nics and not hidden:
        raise not_applicable(no_active_nic(c))
    limit = c.node.limits.memlock_bytes
    if limit is None:
        return
    if hidden:
        title = f"whether an RDMA NIC needs more than the limit of locked memory cannot be determined: {rdma}"
        yield Finding(state=State.UNKNOWN, subject="process", title=title)
        return
    if isinstance(limit, Missing):
        title = f"the limit of locked memory cannot be determined: {limit}"
        yield Finding(state=State.UNKNOWN, subject="process", title=title)
        return
    least = c.threshold("limits.memlock", "fail_bytes", _GIB)
    capable = known(c.node.limits.capabilities) and "IPC_LOCK" in c.node.limits.capabilities
    low = limit < least
    unused = low and not _has_verbs(c)
    lifted = "; the capability IPC_LOCK of this process lifts it, its children without it are bound" if capable else ""
    yield Finding(
        state=unless_lost(c, State.FAIL, "status", "verbs") if low and not capable and not unused else State.NOTE,
        subject="process",
        title=f"this process may lock {size_text(limit)} of memory, and {listed(n.label for n in nics)} "
        f"{'is' if len(nics) == 1 else 'are'} active{lifted}",
        consequence="a child of it without the capability cannot register memory with the NIC, and its job ends"
        if low and capable
        else "none of their devices under /dev/infiniband is here; once they are, registering memory fails "
        "(`ibv_reg_mr`: cannot allocate memory)"
        if unused
        else "registering memory with the NIC fails (`ibv_reg_mr`: cannot allocate memory), and the job ends"
        if low
        else "large jobs may reach it when they register memory with the NIC",
        evidence=_quote(c, "/proc/self/limits Max locked memory", limit)
        + (_quote(c, "/proc/self/status CapEff", "") if capable else ()),
        rule="unlimited, where RDMA is used",
        fix="docker run --ulimit memlock=-1"
        if _inside(c)
        else "memlock unlimited in /etc/security/limits.conf and LimitMEMLOCK=infinity in slurmd's unit, then a new "
        "login: a running session keeps its limit",
    )


def _has_verbs(c: Context) -> bool:
    """Tell whether a device file of an RDMA NIC is here; where that could not be read, it counts as here."""
    devices = c.node.net.verbs_devices
    if isinstance(devices, Missing):
        return devices.reason is not Reason.ABSENT
    return any(d.startswith("uverbs") for d in devices)


@check(
    "limits.nofile",
    title="Few files may be open at a time",
    severity=State.WARN,
    reads=("/proc/self/limits Max open files",),
    needs=Needs(GPUS, ("limits",)),
    scope=Scope.PROCESS,
    thresholds=("warn_below", "note_below"),
)
def nofile(c: Context) -> Iterator[Finding]:
    """The limit of open files is low for a job with many ranks.

    Looks at:
        The soft limit. Thresholds: `warn_below` 1024, `note_below` 8192; NCCL's guide advises 131072.

    Why it matters:
        Every connection takes descriptors: "too many open files", at scale only.

    Fix:
        `ulimit -n 131072`, in limits.conf and in the unit of what starts jobs; it costs nothing.

    Does not apply:
        With fewer than two GPUs.
    """
    limit = c.node.limits.nofile
    if len(c.topology.gpus) < 2:
        raise not_applicable("fewer than two NVIDIA GPUs")
    if limit is None:
        return
    if isinstance(limit, Missing):
        title = f"the limit of open files cannot be determined: {limit}"
        yield Finding(state=State.UNKNOWN, subject="process", title=title)
        return
    low = c.threshold("limits.nofile", "warn_below", 1024)
    some = c.threshold("limits.nofile", "note_below", 8192)
    if limit >= some:
        return
    yield Finding(
        state=State.WARN if limit < low else State.NOTE,
        subject="process",
        title=f"this process may open {limit} files at a time",
        consequence="large jobs end with `too many open files`, since every connection needs some",
        evidence=_quote(c, "/proc/self/limits Max open files", limit),
        rule=f"at least {some:g}; NCCL's guide advises 131072",
        fix="ulimit -n 131072, in limits.conf and in the unit of what starts jobs (LimitNOFILE=)",
    )


@check(
    "limits.stack",
    title="An unlimited stack gives threads a small one",
    severity=State.WARN,
    reads=("/proc/self/limits Max stack size", "installed NCCL"),
    needs=Needs(GPUS, ("limits", "nccl")),
    scope=Scope.PROCESS,
)
def stack(c: Context) -> Iterator[Finding]:
    """The stack is unlimited, so that the C library gives each thread 2 MiB only.

    Looks at:
        The soft limit, and NCCL's version. Rule: glibc's nptl takes the limit for a thread's stack, and its own
        default of 2 MiB where that is unlimited.

    Why it matters:
        NCCL's threads overrun it and the job dies at its start, often with NVLink between hosts.

    Fix:
        `ulimit -s 8192` before the job starts; or NCCL 2.28, which asks for its own size.

    Does not apply:
        NCCL 2.28 and newer. A note where its version is not known.
    """
    if not c.topology.gpus:
        raise not_applicable("no NVIDIA GPU")
    if c.node.limits.stack_bytes is not None:
        return
    version = installed_version(c)
    if version is not None and version >= (2, 28, 0):
        return
    yield Finding(
        state=State.NOTE if version is None else State.WARN,
        subject="process",
        title="the stack of this process is unlimited"
        + (f", and NCCL is {dotted(version)}" if version else "; NCCL before 2.28 does not expect that"),
        consequence="threads get 2 MiB of stack, and the job may die at its start",
        evidence=(*_quote(c, "/proc/self/limits Max stack size", "unlimited"), *version_evidence(c)),
        rule="a number, such as 8 MiB; NCCL sets its own from 2.28 on",
        fix="ulimit -s 8192",
    )


def cumem_host_set(c: Context) -> bool:
    """Tell whether NCCL_CUMEM_HOST_ENABLE is set by hand."""
    return "NCCL_CUMEM_HOST_ENABLE" in in_force(c)
