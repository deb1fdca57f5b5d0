"""What one node does in a tournament: take the round's tasks, measure, answer."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
from time import monotonic, sleep

import msgspec

from topocheck.tests_live import perftest
from topocheck.tests_live.meeting import Meeting
from topocheck.tests_live.node_pairs_types import Half, NodeHello, Round, Task
from topocheck.tests_live.pair_child import PairJob
from topocheck.tests_live.supervise import Process
from topocheck.tests_live.tcp_pair import STALL_S, STREAMS, Listener, call, exchange

FIRST_WAIT_S = 120.0
PERFTEST_S = 30.0
PROGRAMS = ("ib_write_bw", "ib_write_lat")
WAYS = {
    "gloo": {},
    # NCCL's user guide, Environment Variables: NCCL_IB_DISABLE, NCCL_NET_GDR_LEVEL.
    "nccl_tcp": {"NCCL_IB_DISABLE": "1"},
    "nccl_rdma": {"NCCL_IB_DISABLE": "0", "NCCL_NET_GDR_LEVEL": "LOC"},
    "nccl_gdr": {"NCCL_IB_DISABLE": "0", "NCCL_NET_GDR_LEVEL": "SYS"},
}
"""Way -> NCCL's settings for it."""


class Agent:
    """One node. `me` is what it says of itself."""

    def __init__(self, meeting: Meeting, me: NodeHello, listener: Listener) -> None:
        self.meeting, self.me, self.listener = meeting, me, listener
        self.nodes: dict[str, NodeHello] = {}

    def serve(self) -> str:
        """Work through the rounds until there is none; returns why it stopped, empty for the regular end."""
        text = self.meeting.get("nodes", FIRST_WAIT_S)
        if text is None:
            return f"rank 0 said nothing within {FIRST_WAIT_S:.0f} s"
        self.nodes = {n.node: n for n in msgspec.json.decode(text, type=tuple[NodeHello, ...])}
        number, wait = 0, FIRST_WAIT_S
        while True:
            text = self.meeting.get(f"round/{number}", wait)
            if text is None:
                return f"rank 0 began no round {number} within {wait:.0f} s"
            now = msgspec.json.decode(text, type=Round)
            if not now.tasks:
                return ""
            guard = threading.Timer(now.limit_s + 60, _give_up)
            guard.daemon = True
            guard.start()
            mine = [t for t in now.tasks if self.me.node in (t.a, t.b)]
            self.meeting.put(f"half/{number}/{self.me.node}", msgspec.json.encode(self._all(mine)))
            guard.cancel()
            number, wait = number + 1, now.limit_s + 30

    def _all(self, tasks: list[Task]) -> list[Half]:
        """Run tasks, those over TCP at once and in threads of their own."""
        out: list[Half] = []

        def tcp(t: Task) -> None:
            try:
                out.append(self._tcp(t))
            except Exception as e:  # noqa: BLE001 - a thread's fault must reach rank 0 as words
                out.append(Half(task=t.id, error=f"{self.me.node}: {type(e).__name__}: {e}"))

        threads = [threading.Thread(target=tcp, args=(t,), daemon=True) for t in tasks if t.way == "tcp"]
        for thread in threads:
            thread.start()
        for t in tasks:
            if t.way in PROGRAMS:
                out.append(self._perftest(t))
            elif t.way != "tcp":
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
                connections = call(other.address, other.port, task.id, streams)
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
            self.meeting.put(f"port/{key}", str(port).encode())
            return True, self.me.address, port
        text = self.meeting.get(f"port/{key}", 20.0)
        if text is None:
            raise TimeoutError(f"{listener} named no port")
        return False, self.nodes[listener].address, int(text)

    def _torch(self, task: Task) -> Half:
        try:
            listens, address, port = self._port(task.id, task.a)
        except TimeoutError as e:
            return Half(task=task.id, error=str(e))
        place = self.me.nics.index(task.rail) if task.rail in self.me.nics else 0
        gpu = place * self.me.gpus // max(1, len(self.me.nics))
        limit = 60.0 + 8 * task.seconds
        job = PairJob(
            backend="gloo" if task.way == "gloo" else "nccl",
            rank=0 if listens else 1,
            address=address,
            port=port,
            seconds=task.seconds,
            gpu=gpu,
            timeout_s=limit - 10,
        )
        child = Process([sys.executable, "-m", "topocheck.tests_live.pair_child", "{fd}"], self._environment(task))
        try:
            child.tell(msgspec.json.encode(job))
            event = child.event(monotonic() + limit)
        except TimeoutError:
            return Half(task=task.id, error=f"did not come back within {limit:.0f} s")
        finally:
            child.end(0.5)
        if event is None:
            return Half(task=task.id, error=f"{self.me.node}: the process that measures ended without an answer")
        if event["event"] == "failed":
            return Half(task=task.id, error=str(event["reason"]))
        return msgspec.convert({"task": task.id} | event["half"], Half)

    def _environment(self, task: Task) -> dict[str, str]:
        env = dict(os.environ) | WAYS[task.way] | {"OMP_NUM_THREADS": "1", "NCCL_HOSTID": self.me.node}
        # The two processes meet at a store of their own. Under torchrun both would look for its agent's instead.
        env["TORCHELASTIC_USE_AGENT_STORE"] = "False"
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
            if task.way == "ib_write_lat":
                text = self._perftest_side(task, task.a)
                return Half(task=task.id, latency_us=perftest.parse_latency(text)[-1].typical_us if text else None)
            sent = None
            for listener in (task.a, task.b):
                text = self._perftest_side(task, listener)
                if text:
                    sent = perftest.parse_bandwidth(text)[-1].average_gb_s
            return Half(task=task.id, sent_gb_s=sent)
        except (TimeoutError, perftest.PerftestError) as e:
            return Half(task=task.id, error=str(e))

    def _perftest_side(self, task: Task, listener: str) -> str:
        """Run one side; returns what the client printed, and nothing for the side that listens."""
        listens, address, port = self._port(f"{task.id}/{listener}", listener)
        if not listens:
            sleep(1.0)  # the server needs a moment to listen, and its client does not try twice
        argv = perftest.command(task.way, task.rail, port, None if listens else address)
        try:
            done = subprocess.run(
                argv, capture_output=True, timeout=PERFTEST_S, text=True, errors="replace", check=False
            )
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{self.me.node}: {task.way} did not come back within {PERFTEST_S:.0f} s") from None
        except OSError as e:
            raise TimeoutError(f"{self.me.node}: {task.way} cannot be run: {e.strerror}") from None
        if done.returncode:
            last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
            raise TimeoutError(f"{self.me.node}: {task.way} ended with status {done.returncode}: {last[:160]}")
        return "" if listens else done.stdout


def describe(node: str, rank: int, address: str, port: int, nics: tuple[str, ...], *, nccl: bool) -> NodeHello:
    """Return what a node says of itself."""
    gpus = 0
    if nccl:
        import torch

        gpus = torch.cuda.device_count() if torch.cuda.is_available() and torch.distributed.is_nccl_available() else 0
    programs = tuple(p for p in PROGRAMS if shutil.which(p))
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
