"""Why a process is not taken as a rank of a job, in one line that names both sides."""

from __future__ import annotations

import msgspec

from topocheck.tests_live.launch.frames import PROTOCOL, Hello, Refused


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """What rank 0 is, and what it expects of the others."""

    job: str
    command: str
    size: int
    node: str
    version: str


def mismatch(side: Side, hello: Hello) -> Refused | None:
    """Return the refusal of a rank that is of this job and yet none of those that are expected."""
    if hello.version != side.version or hello.protocol != PROTOCOL:
        return Refused(reason="version", value=_version(side.version, PROTOCOL), node=side.node)
    if hello.command != side.command:
        return Refused(reason="command", value=side.command, node=side.node)
    if hello.size != side.size or hello.rank >= side.size:
        return Refused(reason="size", value=str(side.size), node=side.node)
    return None


def refusal_text(why: Refused, hello: Hello) -> str:
    """Return in one line why the process that said `hello` was refused."""
    me = f"rank {hello.rank} on node {hello.node}"
    zero = f"rank 0 on node {why.node}"
    if why.reason == "version":
        return (
            f"{me} runs topocheck {_version(hello.version, hello.protocol)}, {zero} {why.value}: "
            "install one version on all nodes"
        )
    if why.reason == "command":
        return f"{me} runs `topocheck {hello.command}`, {zero} `topocheck {why.value}`: start one command on all ranks"
    if why.reason == "size":
        return f"{me} is one of {hello.size} ranks, {zero} one of {why.value}: these are two jobs that share a port"
    if why.reason == "rank":
        return (
            f"{me}: a process on node {why.node} is rank {hello.rank} of this job already: a rank was started twice, "
            "or two jobs share MASTER_ADDR and MASTER_PORT"
        )
    return {
        "job": "somebody listens there who is rank 0 of another job",
        "secret": "who listens there has another secret",
        "munge": f"munge: {why.value}",
    }.get(why.reason, f"refused: {why.reason}")


def doubled_text(rank: int, first: str, second: str) -> str:
    """Return in one line that two processes, on these nodes, say that they are one rank."""
    where = f"on nodes {first} and {second}" if first != second else f"on node {first}"
    return (
        f"two processes {where} say that they are rank {rank} of this job: a rank was started twice, "
        "or two jobs share MASTER_ADDR and MASTER_PORT"
    )


def _version(version: str, protocol: int) -> str:
    return version if protocol == PROTOCOL else f"{version} (protocol {protocol})"
