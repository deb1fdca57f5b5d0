"""Bandwidth between all pairs of nodes: rank 0 plans the rounds, all nodes measure, rank 0 judges.

Pairs of a round run together and share no node; then all pairs run at once. A node that does not answer in time is
named and left out of the following rounds; what was measured before stays.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from time import gmtime, monotonic, strftime

import msgspec

from topocheck.bandwidth.node_pairs import (
    Half,
    LeafNodes,
    NodeHello,
    NodePairsReport,
    PairRate,
    Round,
    Task,
    leaf_of,
    measured,
)
from topocheck.bandwidth.node_pairs_summary import UNJUDGED
from topocheck.bandwidth.scatter import PairMeasured
from topocheck.bandwidth.slow_links import more_tournaments, suspects, times_again
from topocheck.tests_live.launch.exchange import gather_words
from topocheck.tests_live.launch.rendezvous import UNAUTHENTICATED, Rendezvous
from topocheck.tests_live.launch.words import InvalidWordError, plain, read
from topocheck.tests_live.launch.world import LaunchError, RankLostError
from topocheck.tests_live.nodes.agent import NCCL_TRANSPORTS, PROGRAMS, Agent, describe
from topocheck.tests_live.nodes.schedule import by_leaf, disjoint, rounds, together
from topocheck.tests_live.nodes.tcp import STALL_S, WARM_S, Listener

METHOD = (
    "Round-robin tournament (circle method): the pairs of a round share no node and run together. TCP: 4 streams, each "
    "direction in turn, what arrives between warm-up and end by the receiver's clock, median of 5 parts. "
    "gloo, nccl: send/recv of torch.distributed in fresh processes. GB/s = 10^9 bytes/s, one direction."
)
TORCH_LIMIT_S = 75.0
PERFTEST_LIMIT_S = 90.0
LOOK_S = 1.0
"""How often is looked which nodes are lost while the others are waited for."""
MAX_UPLINKS = 256
"""Uplinks of a leaf that the report keeps."""
Tell = Callable[[str], None]


class PairsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured.

    Attributes:
        transports: of TCP, gloo and NCCL; empty for TCP and, where all nodes have GPUs, NCCL's transports.
        rails: also each NIC by itself.
        seconds: of each direction of each pair.
        join_s: how long rank 0 waits for nodes.
        all_at_once: whether all pairs also run at once.
        leaves: where nodes are in the fabric; rank 0's count.
    """

    transports: tuple[str, ...] = ()
    rails: bool = False
    seconds: float = 1.0
    join_s: float = 60.0
    all_at_once: bool = True
    leaves: tuple[LeafNodes, ...] = ()


def run(
    meeting: Rendezvous, options: PairsOptions, nics: tuple[str, ...], tell: Tell = lambda words: None
) -> NodePairsReport | None:
    """Take part; rank 0 gets what was measured (not yet judged), the others None.

    Args:
        meeting: where the ranks meet.
        options: the same on all ranks.
        nics: labels of this node's RDMA devices with an active port.
        tell: told what happens.

    Raises:
        LaunchError: rank 0 was lost.
    """
    begun, world, key = monotonic(), meeting.world, meeting.node
    if world.rank:
        if meeting.get("zero", options.join_s) is None:
            raise RankLostError(f"rank {world.rank}: rank 0 did not answer within {options.join_s:.0f} s")
        if not meeting.claim(f"node/{key}"):
            meeting.put(f"hello/{world.rank}", b"")
            return None
        _agent(meeting, nics, options).serve_or_raise()
        return None
    meeting.claim(f"node/{key}")
    meeting.put("zero", b"1")
    # Rank 0's own node measures in a thread, while this one plans.
    own: list[LaunchError] = []

    def serve() -> None:
        try:
            _agent(meeting, nics, options).serve_or_raise()
        except LaunchError as e:
            own.append(e)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    report = _Coordinator(meeting, options, tell).run()
    thread.join(10.0)
    return msgspec.structs.replace(report, launcher=world.launcher, wall_s=round(monotonic() - begun, 2))


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


def _agent(meeting: Rendezvous, nics: tuple[str, ...], options: PairsOptions) -> _Serving:
    listener = Listener(meeting.own_address, meeting.key_of("pairs"))
    nccl = not options.transports or bool(NCCL_TRANSPORTS.intersection(options.transports))
    rank = meeting.world.rank
    me = describe(meeting.node, rank, meeting.own_address, listener.port, nics, nccl=nccl)
    meeting.put(f"hello/{rank}", msgspec.msgpack.encode(me))
    return _Serving(Agent(meeting, me, listener), listener)


class _Coordinator:
    """Rank 0's plan and what comes of it."""

    def __init__(self, meeting: Rendezvous, options: PairsOptions, tell: Tell) -> None:
        self.meeting, self.options, self.tell = meeting, options, tell
        self.nodes: dict[str, NodeHello] = {}
        self.unresponsive: dict[str, str] = {}
        self.pairs: list[PairRate] = []
        self.notes: list[str] = []
        self.skipped: dict[str, str] = {}
        self.number = 0

    def run(self) -> NodePairsReport:
        taken = strftime("%Y-%m-%dT%H:%M:%SZ", gmtime())
        self._hear()
        names = list(self.nodes)
        self.meeting.put("nodes", msgspec.msgpack.encode(tuple(self.nodes.values())))
        plan = self._transports()
        for transport, rail in plan:
            self._measure(names, transport, rail)
        if self.options.all_at_once and len(names) > 2 and ("tcp", "") in plan:
            self._round([self._task(a, b, "tcp", "", "together") for a, b in together(names)])
        self.meeting.put(f"round/{self.number}", msgspec.msgpack.encode(Round(number=self.number)))
        return NodePairsReport(
            taken_at=taken,
            nodes=tuple(self.nodes.values()),
            unresponsive=self.unresponsive,
            skipped=self.skipped,
            rounds=self.number,
            method=METHOD,
            ranks_authenticated_by=self.meeting.authenticated_by,
            leaves=self._leaves(),
            pairs=tuple(self.pairs),
            notes=tuple(self.notes),
        )

    def _hear(self) -> None:
        """Wait for every rank's word, and keep those of the nodes."""
        got = gather_words(self.meeting, "hello", self.options.join_s)
        for rank, text in got.payloads.items():
            try:
                if text:
                    self._meet(rank, read(text, NodeHello, self.meeting.name(rank)))
            except InvalidWordError as e:
                self.unresponsive[f"rank {rank}"] = str(e)
        self.unresponsive |= {self.meeting.name(rank): why for rank, why in got.refused.items()}
        if got.late:
            self.unresponsive[self.meeting.names(got.late)] = f"sent nothing within {self.options.join_s:.0f} s"
        self.tell(f"{len(self.nodes)} node{'' if len(self.nodes) == 1 else 's'}: {', '.join(self.nodes)}")

    def _meet(self, rank: int, hello: NodeHello) -> None:
        if hello.rank != rank or hello.node in self.nodes:
            raise InvalidWordError(f"rank {rank} says it is rank {hello.rank}, on {hello.node}")
        self.nodes[hello.node] = hello

    def _transports(self) -> list[tuple[str, str]]:
        """Return (transport, rail) of all tournaments; one that was asked for and cannot be is kept with the reason."""
        hellos = list(self.nodes.values())
        without = [h.node for h in hellos if not h.gpus]
        shared = [n for n in hellos[0].nics if all(n in h.nics for h in hellos)] if hellos else []
        transports = list(self.options.transports) or ["tcp"]
        if not self.options.transports and not without:
            transports += ["nccl_tcp", "nccl_rdma", "nccl_gdr"] if shared else ["nccl_tcp"]
        if len(hellos) < 2:
            why = f"all ranks that came are on one node ({', '.join(self.nodes) or 'none'})"
            self.skipped = dict.fromkeys(transports, why)
            return []
        for transport in transports:
            if transport in NCCL_TRANSPORTS and without:
                some = ", ".join(without[:4]) + (f" and {len(without) - 4} more" if len(without) > 4 else "")
                self.skipped[transport] = f"torch with NCCL sees no GPU on {some}"
            elif transport in ("nccl_rdma", "nccl_gdr") and not shared:
                self.skipped[transport] = "there is no RDMA device with an active port on every node"
        out = [(w, "") for w in transports if w not in self.skipped]
        if not shared:
            self.notes.append("no RDMA device with an active port on every node, so no way over RDMA was measured")
        elif self.options.rails and not without:
            out += [("nccl_gdr", rail) for rail in shared]
        for program in PROGRAMS:
            if shared and not self.meeting.authenticated:
                self.notes.append(f"{program} was not run: {UNAUTHENTICATED}")
            elif shared and all(program in h.programs for h in hellos):
                out += [(program, rail) for rail in shared]
            elif shared:
                self.notes.append(f"{program} is not installed on every node (package perftest), so it was not run")
        return out

    def _measure(self, names: list[str], transport: str, rail: str) -> None:
        """Measure all pairs over one transport, again where they scatter; then anew those that are suspected."""
        tournaments = 0
        judged = transport not in UNJUDGED
        where = leaf_of(self._leaves(), rail)
        while not tournaments or (judged and more_tournaments(self._measured(transport, rail), tournaments, where)):
            for pairs in rounds(names):
                self._apart(pairs, where, transport, rail, "pairs")
            tournaments += 1
        done: set[tuple[str, str]] = set()
        while judged and (todo := [p for p in suspects(self._measured(transport, rail), where) if p not in done]):
            for _ in range(times_again(self._measured(transport, rail), where)):
                for pairs in disjoint(todo):
                    self._apart(pairs, where, transport, rail, "again")
            done |= set(todo)

    def _apart(
        self, pairs: Sequence[tuple[str, str]], where: dict[str, str], transport: str, rail: str, phase: str
    ) -> None:
        """Measure pairs that share no node, and, where the fabric is known, no uplink of a leaf."""
        for some in by_leaf(pairs, where):
            self._round([self._task(a, b, transport, rail, phase) for a, b in some])

    def _leaves(self) -> tuple[LeafNodes, ...]:
        """Return where the nodes of this run are, under the names they have here: with their domain or without."""
        names = {n.partition(".")[0].lower(): n for n in self.nodes}
        found = (
            msgspec.structs.replace(
                x,
                nodes=tuple(names[s] for n in x.nodes if (s := n.partition(".")[0].lower()) in names),
                uplinks=x.uplinks[:MAX_UPLINKS],
            )
            for x in self.options.leaves
        )
        return tuple(x for x in found if x.nodes)

    def _measured(self, transport: str, rail: str) -> dict[tuple[str, str], PairMeasured]:
        return measured(self.pairs, transport, rail, frozenset(self.unresponsive))

    def _task(self, a: str, b: str, transport: str, rail: str, phase: str) -> Task:
        return Task(
            id=f"{self.number}:{a}:{b}:{transport}",
            a=a,
            b=b,
            transport=transport,
            rail=rail,
            phase=phase,
            seconds=self.options.seconds,
        )

    def _round(self, tasks: list[Task]) -> None:
        """Run one round; a node that does not answer in time is unresponsive from then on."""
        lost = [t for t in tasks if t.a in self.unresponsive or t.b in self.unresponsive]
        for t in lost:
            gone = t.a if t.a in self.unresponsive else t.b
            self.pairs.append(_pair(t, error=f"not measured: {gone} no longer answers"))
        tasks = [t for t in tasks if t not in lost]
        if not tasks:
            return
        limit = max(map(_limit_s, tasks))
        now = Round(number=self.number, tasks=tuple(tasks), limit_s=limit)
        self.tell(
            f"round {self.number}: " + ", ".join(f"{t.a} - {t.b}" for t in tasks[:8]) + f" ({tasks[0].transport})"
        )
        self.meeting.put(f"round/{self.number}", msgspec.msgpack.encode(now))
        halves: dict[tuple[str, str], Half] = {}
        here = [n for n in self.nodes if n not in self.unresponsive]
        prefix = f"half/{self.number}/"
        late = self._late(prefix, here, limit)
        for node in here:
            if node in late:
                what = ", ".join(f"{t.a} - {t.b}" for t in tasks if node in (t.a, t.b))
                why = self._lost(node) or f"answered nothing within {limit:.0f} s"
                self._lose(node, f"{why}, in round {self.number} ({what})")
                continue
            try:
                said = read(self.meeting.get(prefix + node) or b"", tuple[Half, ...], node)
            except InvalidWordError as e:
                self._lose(node, str(e))
                continue
            for h in said:
                halves[node, h.task] = msgspec.structs.replace(h, error=plain(h.error))
        self.pairs += [_join(t, halves.get((t.a, t.id)), halves.get((t.b, t.id)), self.unresponsive) for t in tasks]
        self.number += 1

    def _late(self, prefix: str, nodes: Sequence[str], limit_s: float) -> set[str]:
        """Return which nodes have not answered after `limit_s` seconds, or are lost before that."""
        end, late = monotonic() + limit_s, set(nodes)
        while True:
            left = max(0.0, end - monotonic())
            found = self.meeting.missing([prefix + n for n in sorted(late)], min(LOOK_S, left))
            late = {k.removeprefix(prefix) for k in found}
            if not left or all(map(self._lost, late)):
                return late

    def _lost(self, node: str) -> str:
        """Return why a node's rank is taken for lost; empty where it is there."""
        return self.meeting.life.lost.get(self.nodes[node].rank, "")

    def _lose(self, node: str, why: str) -> None:
        self.unresponsive[node] = why
        self.tell(f"{node} {why}")


def _limit_s(task: Task) -> float:
    if task.transport == "tcp":
        return 2 * (WARM_S + task.seconds) + 2 * STALL_S + 3
    return PERFTEST_LIMIT_S if task.transport in PROGRAMS else TORCH_LIMIT_S + 10 * task.seconds


def _pair(task: Task, **fields: object) -> PairRate:
    return PairRate(a=task.a, b=task.b, transport=task.transport, rail=task.rail, phase=task.phase, **fields)  # type: ignore[arg-type]


def _join(task: Task, a: Half | None, b: Half | None, unresponsive: dict[str, str]) -> PairRate:
    """Return a pair from what its two nodes said."""
    gone = [n for n in (task.a, task.b) if n in unresponsive]
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
        a_busy=a.busy if a else None,
        b_busy=b.busy if b else None,
        error="; ".join(errors),
    )
