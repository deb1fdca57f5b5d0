"""Bandwidth between all pairs of nodes: rank 0 plans the rounds, all nodes measure, rank 0 judges.

Pairs of a round run together and share no node; then all pairs run at once. A node that does not answer in time is
named and left out of the following rounds; what was measured before stays.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import gmtime, monotonic, strftime

import msgspec

from topocheck.tests_live.meeting import Meeting, node_here
from topocheck.tests_live.node_agent import Agent, describe
from topocheck.tests_live.node_pairs_types import Half, NodeHello, NodePairsReport, PairRate, Round, Task
from topocheck.tests_live.node_ports import suspects
from topocheck.tests_live.ranks import LaunchError, World
from topocheck.tests_live.tcp_pair import STALL_S, WARM_S, Listener
from topocheck.tests_live.tournament import disjoint, rounds, together

METHOD = (
    "Round-robin tournament (circle method): the pairs of a round share no node and run together. TCP: 4 streams, each "
    "direction in turn, what arrives between warm-up and end by the receiver's clock, median of 5 parts. "
    "gloo, nccl: send/recv of torch.distributed in fresh processes. GB/s = 10^9 bytes/s, one direction."
)
TORCH_LIMIT_S = 75.0
PERFTEST_LIMIT_S = 90.0
Tell = Callable[[str], None]


class PairsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured.

    Attributes:
        ways: of TCP, gloo and NCCL; empty for TCP and, where all nodes have GPUs, NCCL's ways.
        rails: also each NIC by itself.
        seconds: of each direction of each pair.
        join_s: how long rank 0 waits for nodes.
        all_at_once: whether all pairs also run at once.
    """

    ways: tuple[str, ...] = ()
    rails: bool = False
    seconds: float = 1.0
    join_s: float = 60.0
    all_at_once: bool = True


def run(
    world: World, options: PairsOptions, nics: tuple[str, ...], tell: Tell = lambda words: None
) -> NodePairsReport | None:
    """Take part; rank 0 gets what was measured (not yet judged), the others None.

    Args:
        world: this process's place.
        options: the same on all ranks.
        nics: labels of this node's RDMA devices with an active port.
        tell: told what happens.

    Raises:
        LaunchError: the ranks cannot meet, or rank 0 was lost.
    """
    begun = monotonic()
    meeting = Meeting(world, options.join_s)
    key = node_here(world)
    if world.rank:
        if meeting.get("zero", options.join_s) is None:
            raise LaunchError(f"rank {world.rank}: rank 0 said nothing within {options.join_s:.0f} s")
        if not meeting.claim(f"node/{key}"):
            meeting.put(f"hello/{world.rank}", b"")
            return None
        _agent(meeting, world, key, nics, options).serve_or_raise()
        return None
    meeting.claim(f"node/{key}")
    meeting.put("zero", b"1")
    # Rank 0's own node measures in a thread with its own connection, while this one plans.
    place = msgspec.structs.replace(meeting.world)
    own: list[LaunchError] = []

    def serve() -> None:
        try:
            _agent(Meeting(_as_client(place), options.join_s), world, key, nics, options).serve_or_raise()
        except LaunchError as e:
            own.append(e)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    report = _Coordinator(meeting, options, tell).run()
    thread.join(10.0)
    return msgspec.structs.replace(report, launcher=world.launcher, wall_s=round(monotonic() - begun, 2))


def _as_client(world: World) -> World:
    """Return the world of a second connection of rank 0, which must not listen again."""
    return msgspec.structs.replace(world, rank=world.size)


class _Serving:
    def __init__(self, agent: Agent, listener: Listener) -> None:
        self.agent, self.listener = agent, listener

    def serve_or_raise(self) -> None:
        try:
            why = self.agent.serve()
        finally:
            self.listener.close()
        if why:
            raise LaunchError(f"node {self.agent.me.node}: {why}")


def _agent(meeting: Meeting, world: World, key: str, nics: tuple[str, ...], options: PairsOptions) -> _Serving:
    address = meeting.own_address()
    listener = Listener(address)
    nccl = not options.ways or any(w.startswith("nccl") for w in options.ways)
    me = describe(key, world.rank, address, listener.port, nics, nccl=nccl)
    meeting.put(f"hello/{world.rank}", msgspec.json.encode(me))
    return _Serving(Agent(meeting, me, listener), listener)


class _Coordinator:
    """Rank 0's plan and what comes of it."""

    def __init__(self, meeting: Meeting, options: PairsOptions, tell: Tell) -> None:
        self.meeting, self.options, self.tell = meeting, options, tell
        self.nodes: dict[str, NodeHello] = {}
        self.silent: dict[str, str] = {}
        self.pairs: list[PairRate] = []
        self.notes: list[str] = []
        self.not_tried: dict[str, str] = {}
        self.number = 0

    def run(self) -> NodePairsReport:
        taken = strftime("%Y-%m-%dT%H:%M:%SZ", gmtime())
        self._hear()
        names = list(self.nodes)
        self.meeting.put("nodes", msgspec.json.encode(tuple(self.nodes.values())))
        plan = self._ways()
        for way, rail in plan:
            for pairs in rounds(names):
                self._round([self._task(a, b, way, rail, "pairs") for a, b in pairs])
            # Before anyone is accused, the slow pairs are measured once more, in turn.
            for pairs in disjoint(self._suspects(way, rail)):
                self._round([self._task(a, b, way, rail, "again") for a, b in pairs])
        if self.options.all_at_once and len(names) > 2 and ("tcp", "") in plan:
            self._round([self._task(a, b, "tcp", "", "together") for a, b in together(names)])
        self.meeting.put(f"round/{self.number}", msgspec.json.encode(Round(number=self.number)))
        return NodePairsReport(
            taken_at=taken,
            nodes=tuple(self.nodes.values()),
            silent=self.silent,
            not_tried=self.not_tried,
            rounds=self.number,
            method=METHOD,
            pairs=tuple(self.pairs),
            notes=tuple(self.notes),
        )

    def _hear(self) -> None:
        """Wait for every rank's word, and keep those of the nodes."""
        end = monotonic() + self.options.join_s
        for rank in range(self.meeting.world.size):
            text = self.meeting.get(f"hello/{rank}", max(0.1, end - monotonic()))
            if text is None:
                self.silent[f"rank {rank}"] = f"did not come within {self.options.join_s:.0f} s"
            elif text:
                hello = msgspec.json.decode(text, type=NodeHello)
                self.nodes[hello.node] = hello
        self.tell(f"{len(self.nodes)} node{'' if len(self.nodes) == 1 else 's'}: {', '.join(self.nodes)}")

    def _ways(self) -> list[tuple[str, str]]:
        """Return (way, rail) of all tournaments; a way that was asked for and cannot be is kept with the reason."""
        hellos = list(self.nodes.values())
        without = [h.node for h in hellos if not h.gpus]
        shared = [n for n in hellos[0].nics if all(n in h.nics for h in hellos)] if hellos else []
        ways = list(self.options.ways) or ["tcp"]
        if not self.options.ways and not without:
            ways += ["nccl_tcp", "nccl_rdma", "nccl_gdr"] if shared else ["nccl_tcp"]
        if len(hellos) < 2:
            why = f"all ranks that came are on one node ({', '.join(self.nodes) or 'none'})"
            self.not_tried = dict.fromkeys(ways, why)
            return []
        for way in ways:
            if way.startswith("nccl") and without:
                some = ", ".join(without[:4]) + (f" and {len(without) - 4} more" if len(without) > 4 else "")
                self.not_tried[way] = f"torch with NCCL sees no GPU on {some}"
            elif way in ("nccl_rdma", "nccl_gdr") and not shared:
                self.not_tried[way] = "there is no RDMA device with an active port on every node"
        out = [(w, "") for w in ways if w not in self.not_tried]
        if not shared:
            self.notes.append("no RDMA device with an active port on every node, so no way over RDMA was measured")
        elif self.options.rails and not without:
            out += [("nccl_gdr", rail) for rail in shared]
        for program in ("ib_write_bw", "ib_write_lat"):
            if shared and all(program in h.programs for h in hellos):
                out += [(program, rail) for rail in shared]
            elif shared:
                self.notes.append(f"{program} is not installed on every node (package perftest), so it was not run")
        return out

    def _task(self, a: str, b: str, way: str, rail: str, phase: str) -> Task:
        return Task(
            id=f"{self.number}:{a}:{b}:{way}", a=a, b=b, way=way, rail=rail, phase=phase, seconds=self.options.seconds
        )

    def _round(self, tasks: list[Task]) -> None:
        """Run one round; a node that does not answer in time is silent from then on."""
        lost = [t for t in tasks if t.a in self.silent or t.b in self.silent]
        for t in lost:
            gone = t.a if t.a in self.silent else t.b
            self.pairs.append(_pair(t, error=f"not measured: {gone} no longer answers"))
        tasks = [t for t in tasks if t not in lost]
        if not tasks:
            return
        limit = max(map(_limit_s, tasks))
        now = Round(number=self.number, tasks=tuple(tasks), limit_s=limit)
        self.tell(f"round {self.number}: " + ", ".join(f"{t.a} - {t.b}" for t in tasks[:8]) + f" ({tasks[0].way})")
        self.meeting.put(f"round/{self.number}", msgspec.json.encode(now))
        end = monotonic() + limit
        halves: dict[tuple[str, str], Half] = {}
        for node in self.nodes:
            if node in self.silent:
                continue
            text = self.meeting.get(f"half/{self.number}/{node}", max(0.1, end - monotonic()))
            if text is None:
                what = ", ".join(f"{t.a} - {t.b}" for t in tasks if node in (t.a, t.b))
                self.silent[node] = f"answered nothing in round {self.number} ({what}) within {limit:.0f} s"
                self.tell(f"{node} {self.silent[node]}")
                continue
            for h in msgspec.json.decode(text, type=tuple[Half, ...]):
                halves[node, h.task] = h
        self.pairs += [_join(t, halves.get((t.a, t.id)), halves.get((t.b, t.id)), self.silent) for t in tasks]
        self.number += 1

    def _suspects(self, way: str, rail: str) -> list[tuple[str, str]]:
        if way == "ib_write_lat":
            return []
        rates = directed(self.pairs, way, rail, frozenset(self.silent))
        return [p for p in suspects(rates) if not set(p) & set(self.silent)]


def _limit_s(task: Task) -> float:
    if task.way == "tcp":
        return 2 * (WARM_S + task.seconds) + 2 * STALL_S + 3
    return PERFTEST_LIMIT_S if task.way.startswith("ib_") else TORCH_LIMIT_S + 10 * task.seconds


def _pair(task: Task, **fields: object) -> PairRate:
    return PairRate(a=task.a, b=task.b, way=task.way, rail=task.rail, phase=task.phase, **fields)  # type: ignore[arg-type]


def _join(task: Task, a: Half | None, b: Half | None, silent: dict[str, str]) -> PairRate:
    """Return a pair from what its two nodes said."""
    gone = [n for n in (task.a, task.b) if n in silent]
    errors = [h.error for h in (a, b) if h is not None and h.error]
    if gone:
        errors = [f"{gone[0]} did not answer"]
    to_b = (b.received_gb_s if b else None) or (a.sent_gb_s if a else None)
    to_a = (a.received_gb_s if a else None) or (b.sent_gb_s if b else None)
    latencies = [h.latency_us for h in (a, b) if h is not None and h.latency_us is not None]
    return _pair(
        task,
        a_to_b_gb_s=to_b,
        b_to_a_gb_s=to_a,
        latency_us=latencies[0] if latencies else None,
        spread=max((h.spread for h in (a, b) if h is not None), default=0.0),
        error="; ".join(errors),
    )


def directed(
    pairs: list[PairRate] | tuple[PairRate, ...], way: str, rail: str, silent: frozenset[str]
) -> dict[tuple[str, str], float]:
    """Return (sender, receiver) -> GB/s of one way; the best of a pair that was measured again.

    A pair that failed although both its nodes answer has rate 0; a pair with a silent node counts only where it has a
    rate.
    """
    out: dict[tuple[str, str], float] = {}
    for p in pairs:
        if p.way != way or p.rail != rail or p.phase == "together":
            continue
        for ends, rate in (((p.a, p.b), p.a_to_b_gb_s), ((p.b, p.a), p.b_to_a_gb_s)):
            if rate is None and (not p.error or silent & set(ends)):
                continue
            out[ends] = max(out.get(ends, 0.0), rate or 0.0)
    return out
