"""What one node does in a tournament: take the round's tasks, measure, answer."""

from __future__ import annotations

import os
import socket
import sys
import threading
from time import monotonic, sleep
from typing import Any

import msgspec

from topocheck.bandwidth.node_pairs import Half, NodeHello, Round, Task
from topocheck.model.bounded import Port
from topocheck.process.child import Child
from topocheck.process.command import OutputTooLargeError, run
from topocheck.process.programs import find_program
from topocheck.process.python import child_environment, python_argv
from topocheck.tests_live.launch import secret
from topocheck.tests_live.launch.frames import digest
from topocheck.tests_live.launch.rendezvous import UNAUTHENTICATED, Rendezvous
from topocheck.tests_live.launch.words import InvalidWordError, plain, read
from topocheck.tests_live.launch.world import RankLostError
from topocheck.tests_live.nodes import perftest
from topocheck.tests_live.nodes.load import Load
from topocheck.tests_live.nodes.tcp import STALL_S, STREAMS, Listener, call, exchange
from topocheck.tests_live.nodes.torch_pair import PairJob

FIRST_WAIT_S = 120.0
LOOK_S = 1.0
"""How often is looked whether the other node of a pair is lost."""
PERFTEST_S = 30.0
OUTPUT_LIMIT = 1 << 20
"""Bytes that a program of perftest may write; it writes some kilobytes."""
PROGRAMS = ("ib_write_bw", "ib_write_lat")
TRANSPORTS = {
    "gloo": {},
    # NCCL's user guide, Environment Variables: NCCL_IB_DISABLE, NCCL_NET_GDR_LEVEL.
    "nccl_tcp": {"NCCL_IB_DISABLE": "1"},
    "nccl_rdma": {"NCCL_IB_DISABLE": "0", "NCCL_NET_GDR_LEVEL": "LOC"},
    "nccl_gdr": {"NCCL_IB_DISABLE": "0", "NCCL_NET_GDR_LEVEL": "SYS"},
}
"""Transport of torch.distributed -> NCCL's settings for it."""
NCCL_TRANSPORTS = frozenset(TRANSPORTS) - {"gloo"}


class Agent:
    """One node. `me` is what it says of itself."""

    def __init__(self, meeting: Rendezvous, me: NodeHello, listener: Listener) -> None:
        self.meeting, self.me, self.listener = meeting, me, listener
        self.nodes: dict[str, NodeHello] = {}

    def serve(self) -> str:
        """Work through the rounds until there is none; returns why it stopped, empty for the regular end."""
        text = self.meeting.get("nodes", FIRST_WAIT_S)
        if text is None:
            return f"rank 0 did not answer within {FIRST_WAIT_S:.0f} s"
        try:
            self.nodes = {n.node: n for n in read(text, tuple[NodeHello, ...], "rank 0")}
            return self._rounds()
        except InvalidWordError as e:
            return str(e)

    def _rounds(self) -> str:
        number, wait = 0, FIRST_WAIT_S
        while True:
            text = self.meeting.get(f"round/{number}", wait)
            if text is None:
                return f"rank 0 began no round {number} within {wait:.0f} s"
            now = read(text, Round, "rank 0")
            if not now.tasks:
                return ""
            guard = threading.Timer(now.limit_s + 60, _give_up)
            guard.daemon = True
            guard.start()
            mine = [t for t in now.tasks if self.me.node in (t.a, t.b)]
            before = Load()
            halves = self._all(mine)
            busy = before.others_since()
            said = [msgspec.structs.replace(h, busy=busy) for h in halves]
            self.meeting.put(f"half/{number}/{self.me.node}", msgspec.msgpack.encode(said))
            guard.cancel()
            number, wait = number + 1, now.limit_s + 30

    def _refusal(self, task: Task) -> str:
        """Return why a task that rank 0 gives is not done; empty where it is."""
        if task.a == task.b or task.a not in self.nodes or task.b not in self.nodes:
            return f"{self.me.node}: {task.a} and {task.b} are no pair of nodes"
        if task.transport not in ("tcp", *TRANSPORTS, *PROGRAMS):
            return f"{self.me.node}: {task.transport} is no way to measure a pair"
        if task.rail and task.rail not in self.me.nics:
            return f"{self.me.node} has no device {task.rail}"
        if task.transport in PROGRAMS and not self.meeting.authenticated:
            return f"{self.me.node}: {task.transport} is not run: {UNAUTHENTICATED}"
        return ""

    def _all(self, tasks: list[Task]) -> list[Half]:
        """Run tasks, those over TCP at once and in threads of their own."""
        out = [Half(task=t.id, error=why) for t in tasks if (why := self._refusal(t))]
        tasks = [t for t in tasks if not self._refusal(t)]

        def tcp(t: Task) -> None:
            try:
                out.append(self._tcp(t))
            except Exception as e:  # noqa: BLE001 - a thread's fault must reach rank 0 as words
                out.append(Half(task=t.id, error=f"{self.me.node}: {type(e).__name__}: {e}"))

        threads = [threading.Thread(target=tcp, args=(t,), daemon=True) for t in tasks if t.transport == "tcp"]
        for thread in threads:
            thread.start()
        for t in tasks:
            if t.transport in PROGRAMS:
                out.append(self._perftest(t))
            elif t.transport != "tcp":
                out.append(self._torch(t))
        for thread in threads:
            thread.join()
        return out

    def _tcp(self, task: Task) -> Half:
        first = task.a == self.me.node
        streams = STREAMS if task.phase != "together" else 1
        other = self.nodes[task.b if first else task.a]
        try:
            if first:
                connections = call(other.address, other.port, task.id, streams, self.meeting.key_of("pairs"))
            else:
                connections = self.listener.take(task.id, streams, STALL_S + 1)
        except OSError as e:
            return Half(task=task.id, error=f"{self.me.node} cannot reach {other.node}: {e.strerror or e}")
        got = exchange(connections, first=first, seconds=task.seconds)
        return Half(
            task=task.id,
            received_gb_s=got.received_gb_s,
            samples=got.samples,
            spread=got.spread,
            latency_us=got.latency_us if first else None,
            error=got.error,
        )

    def _port(self, key: str, listener: str) -> tuple[bool, str, int]:
        """Return (whether this side listens, the listener's address, its port), agreed over the store."""
        if listener == self.me.node:
            port = _free_port(self.me.address)
            self.meeting.put(f"port/{key}", msgspec.msgpack.encode(port))
            return True, self.me.address, port
        text = self.meeting.get(f"port/{key}", 20.0)
        if text is None:
            raise TimeoutError(f"{listener} named no port")
        return False, self.nodes[listener].address, read(text, Port, listener)

    def _torch(self, task: Task) -> Half:
        place = self.me.nics.index(task.rail) if task.rail in self.me.nics else 0
        gpu = place * self.me.gpus // max(1, len(self.me.nics))
        limit = 60.0 + 8 * task.seconds
        job = PairJob(
            backend="gloo" if task.transport == "gloo" else "nccl",
            rank=0 if task.a == self.me.node else 1,
            world=self.meeting.world,
            ticket=self.meeting.ticket,
            scope=f"pair/{digest(task.id.encode()).hex()[:32]}",
            seconds=task.seconds,
            gpu=gpu,
            timeout_s=limit - 10,
        )
        child = Child(python_argv("topocheck.tests_live.nodes.torch_pair", "{fd}"), self._environment(task))
        try:
            child.send_line(msgspec.json.encode(job))
            event = self._answer(child, task, monotonic() + limit)
        except TimeoutError:
            return Half(task=task.id, error=f"did not come back within {limit:.0f} s")
        except RankLostError as e:
            return Half(task=task.id, error=str(e))
        finally:
            child.end(0.5)
        if event is None:
            return Half(task=task.id, error=f"{self.me.node}: the process that measures ended without an answer")
        if event["event"] == "failed":
            return Half(task=task.id, error=str(event["reason"]))
        return msgspec.convert({"task": task.id} | event["half"], Half)

    def _answer(self, child: Child, task: Task, end: float) -> dict[str, Any] | None:
        """Return what the process of a pair says.

        Raises:
            TimeoutError: it said nothing before `end`.
            RankLostError: the other node is lost.
        """
        other = self.nodes[task.b if task.a == self.me.node else task.a].rank
        self.meeting.life.child = child.pid
        try:
            while True:
                try:
                    return child.next_event(min(end, monotonic() + LOOK_S))
                except TimeoutError:
                    if why := self.meeting.life.lost.get(other):
                        raise RankLostError(why) from None
                    if monotonic() >= end:
                        raise
        finally:
            self.meeting.life.child = 0

    def _environment(self, task: Task) -> dict[str, str]:
        env = dict(os.environ) | TRANSPORTS[task.transport] | {"OMP_NUM_THREADS": "1", "NCCL_HOSTID": self.me.node}
        env.pop(secret.VARIABLE, None)
        if task.rail:
            env["NCCL_IB_HCA"] = f"={task.rail}"
        interface = _interface(self.me.address)
        if interface:
            env.setdefault("GLOO_SOCKET_IFNAME", interface)
            env.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")
        return env

    def _perftest(self, task: Task) -> Half:
        """Run a program of perftest: the bandwidth once with each node as the client, since only the client writes."""
        try:
            if task.transport == "ib_write_lat":
                text = self._perftest_side(task, task.a)
                return Half(task=task.id, latency_us=perftest.parse_latency(text)[-1].typical_us if text else None)
            sent = None
            for listener in (task.a, task.b):
                text = self._perftest_side(task, listener)
                if text:
                    sent = perftest.parse_bandwidth(text)[-1].average_gb_s
            return Half(task=task.id, sent_gb_s=sent)
        except (TimeoutError, ValueError, InvalidWordError) as e:
            return Half(task=task.id, error=plain(str(e)))

    def _perftest_side(self, task: Task, listener: str) -> str:
        """Run one side; returns what the client printed, and nothing for the side that listens."""
        listens, address, port = self._port(f"{task.id}/{listener}", listener)
        if not listens:
            sleep(1.0)  # the server needs a moment to listen, and its client does not try twice
        program = find_program(task.transport)
        if program is None:
            raise TimeoutError(f"{self.me.node}: {task.transport} is not installed")
        argv = perftest.command(program, task.rail, port, None if listens else address)
        try:
            done = run(argv, child_environment(), PERFTEST_S, OUTPUT_LIMIT)
        except TimeoutError:
            raise TimeoutError(
                f"{self.me.node}: {task.transport} did not come back within {PERFTEST_S:.0f} s"
            ) from None
        except OutputTooLargeError:
            raise TimeoutError(f"{self.me.node}: {task.transport} wrote more than {OUTPUT_LIMIT >> 20} MiB") from None
        except OSError as e:
            raise TimeoutError(f"{self.me.node}: {task.transport} cannot be run: {e.strerror}") from None
        if done.rc:
            last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
            raise TimeoutError(f"{self.me.node}: {task.transport} ended with status {done.rc}: {plain(last, 160)}")
        return "" if listens else done.stdout


def describe(node: str, rank: int, address: str, port: int, nics: tuple[str, ...], *, nccl: bool) -> NodeHello:
    """Return what a node says of itself."""
    gpus = 0
    if nccl:
        import torch

        gpus = torch.cuda.device_count() if torch.cuda.is_available() and torch.distributed.is_nccl_available() else 0
    programs = tuple(p for p in PROGRAMS if find_program(p))
    return NodeHello(
        node=node,
        rank=rank,
        host=socket.gethostname(),
        address=address,
        port=port,
        nics=nics,
        gpus=gpus,
        programs=programs,
    )


def _interface(address: str) -> str:
    """Return the name of the interface that has an address."""
    import psutil

    for name, addresses in psutil.net_if_addrs().items():
        if any(a.address.split("%")[0] == address for a in addresses):
            return str(name)
    return ""


def _free_port(address: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as s:
        s.bind((address, 0))
        return int(s.getsockname()[1])


def _give_up() -> None:
    """End a node that stands in a call nobody can interrupt."""
    print("topocheck: this node's measurement did not come back; giving up", file=sys.stderr, flush=True)
    os._exit(3)
