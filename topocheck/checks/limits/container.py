"""Conditions that a container or the login manager takes away from NCCL."""

from __future__ import annotations

from collections.abc import Iterator

from topocheck.checks.limits.process import cumem_host_set
from topocheck.checks.needs import unless_lost
from topocheck.checks.registry import Context, Scope, check, not_applicable
from topocheck.checks.shared.affinity import cpus
from topocheck.checks.shared.common import listed
from topocheck.checks.shared.settings import dotted, installed_version, version_evidence
from topocheck.checks.sources import GPUS, Needs
from topocheck.model.base import Evidence, Finding, Missing, State, known

_SINCE, _FALLS_BACK = (2, 23, 4), (2, 26, 3)
"""NCCL versions that take host memory from cuMem, and the first that falls back by itself (issue 1838)."""


@check(
    "limits.cumem-host",
    title="NCCL's host memory by cuMem may fail here",
    severity=State.WARN,
    reads=("/proc/self/status CapEff", "/proc/self/status Seccomp", "/sys/devices/system/node/has_memory"),
    needs=Needs((*GPUS, "settings", "nccl"), ("status", "container", "numa")),
    scope=Scope.PROCESS,
)
def cumem_host(c: Context) -> Iterator[Finding]:
    """NCCL takes shared host memory through cuMem, which asks for a NUMA node, and something here forbids that.

    Looks at:
        In a container: the capability SYS_NICE and the seccomp filter, which together decide on calls of NUMA.
        Anywhere: nodes with CPUs and without memory. And NCCL's version.

    Why it matters:
        The allocation fails and NCCL ends at its start: 2.23.4 to 2.26.2. From 2.26.3 on it falls back by itself.

    Fix:
        `docker run --cap-add SYS_NICE`; or NCCL 2.26.3; or `NCCL_CUMEM_HOST_ENABLE=0`.

    Does not apply:
        With fewer than two GPUs, where the setting is made by hand, and with other versions of NCCL.
    """
    version = installed_version(c)
    if len(c.topology.gpus) < 2 or cumem_host_set(c):
        raise not_applicable("fewer than two GPUs, or NCCL_CUMEM_HOST_ENABLE is set")
    if version is not None and not _SINCE <= version < _FALLS_BACK:
        raise not_applicable(f"NCCL {dotted(version)} does without, or falls back by itself")
    why: list[str] = []
    evidence: list[Evidence] = []
    limits = c.node.limits
    nice = known(limits.capabilities) and "SYS_NICE" in limits.capabilities
    # Without a filter (seccomp 0) the NUMA calls need no capability.
    if known(c.node.system.container) and known(limits.capabilities) and not nice and limits.seccomp == 2:
        why.append("this container has a seccomp filter and not the capability SYS_NICE")
        evidence += limits.evidence("/proc/self/status CapEff", "/proc/self/status Seccomp")
    bare = _without_memory(c)
    if bare:
        why.append(f"NUMA nodes {listed(map(str, bare))} have CPUs and no memory")
        evidence.append(Evidence("/sys/devices/system/node/has_memory", str(c.node.numa.has_memory)))
    if not why:
        return
    yield Finding(
        state=unless_lost(c, State.WARN, "settings", "numa") if version is not None else State.NOTE,
        subject="process",
        title="; ".join(why) + (f"; NCCL is {dotted(version)}" if version else "; NCCL's version is not known"),
        consequence="NCCL 2.23.4 to 2.26.2 ends at its start, when it allocates shared host memory",
        evidence=(*evidence, *version_evidence(c)),
        rule="calls of NUMA are allowed, and every node with CPUs has memory",
        fix="docker run --cap-add SYS_NICE, or NCCL 2.26.3, or NCCL_CUMEM_HOST_ENABLE=0 (older shared memory is used)",
    )


def _without_memory(c: Context) -> list[int]:
    with_cpus, with_memory = cpus(c.node.numa.has_cpu), cpus(c.node.numa.has_memory)
    if with_cpus is None or with_memory is None or len(with_cpus) < 2:
        return []
    return sorted(with_cpus - with_memory)


@check(
    "limits.remove-ipc",
    title="The login manager removes shared memory of users it considers logged out",
    severity=State.NOTE,
    reads=("/etc/systemd/logind.conf", "/etc/systemd/logind.conf.d/*"),
)
def remove_ipc(c: Context) -> Iterator[Finding]:
    """systemd-logind removes shared memory when a user's last session ends.

    Looks at:
        RemoveIPC in logind's files, where they say so.

    Why it matters:
        A job that a batch system started has no session. When the user logs out elsewhere its files under /dev/shm
        go, and NCCL says "unlink shared memory ... No such file".

    Fix:
        `RemoveIPC=no` in /etc/systemd/logind.conf and `systemctl restart systemd-logind`, or
        `loginctl enable-linger USER`.

    Does not apply:
        System users, and machines whose files say nothing: what then holds is the distribution's default.
    """
    said = c.node.system.remove_ipc
    if isinstance(said, Missing):
        raise not_applicable("logind's files say nothing of RemoveIPC")
    if not c.topology.gpus:
        raise not_applicable("no NVIDIA GPU")
    if said.strip().lower() not in ("yes", "true", "on", "1"):
        return
    found = [Evidence(k, v) for k, v in c.node.system.raw.items() if "logind" in k]
    yield Finding(
        state=State.NOTE,
        subject="node",
        title=f"logind removes shared memory of users who log out (RemoveIPC={said})",
        consequence="a running job loses its files under /dev/shm when its user logs out elsewhere",
        evidence=tuple(found) or (Evidence("/etc/systemd/logind.conf RemoveIPC", said),),
        rule="RemoveIPC=no on nodes that run jobs without a session",
        fix="RemoveIPC=no in /etc/systemd/logind.conf, then systemctl restart systemd-logind (as root)",
    )
