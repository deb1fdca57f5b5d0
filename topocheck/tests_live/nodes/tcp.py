"""How fast two nodes exchange bytes over TCP: plain sockets, several streams, the receiver's clock.

The streams send for a set time; the rate is what arrived between the warm-up and the end, by the clock of the node
that received it, so neither a socket's buffer nor the start of the transfer counts.
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import selectors
import socket
import threading
from collections.abc import Callable
from time import monotonic

import msgspec

from topocheck.bandwidth.stats import median, spread
from topocheck.tests_live.launch.frames import derived, digest, same

BLOCK = 1 << 18
STREAMS = 4
WARM_S = 0.3
WINDOWS = 5
PINGS = 50
STALL_S = 4.0
"""Seconds without a byte after which a connection is taken for dead."""
STRANGERS = 64
"""Connections that have not said who they are, at one time."""
GREETING = 32 + 1 + 16 + 32
"""Bytes: SHA-256 of the task, the stream, random bytes, and a code over these three."""
MORE, LAST = b"\x01", b"\x00"


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one pair, seen from one of its nodes.

    Attributes:
        received_gb_s: rate of what this node received.
        samples: the rate in each of the equal parts of the window.
        latency_us: half of a round trip of one byte, the median; measured by the node that connects.
        error: why there is no rate; empty where there is one.
    """

    received_gb_s: float | None = None
    samples: tuple[float, ...] = ()
    spread: float = 0.0
    latency_us: float | None = None
    error: str = ""


class Listener:
    """Takes connections at one address and hands each to the task it names.

    A connection says in its first GREETING bytes which stream of which task it is, and shows that it knows the key of
    the job. Others are closed, at the latest after STALL_S seconds; a few may be there at one time, and the oldest of
    them makes way for the next.
    """

    def __init__(self, address: str, key: bytes) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._key = key
        self._socket = socket.socket(family)
        self._socket.bind((address, 0))
        self._socket.listen(256)
        self._socket.setblocking(False)
        self.port = int(self._socket.getsockname()[1])
        self._waiting: dict[bytes, queue.Queue[tuple[int, socket.socket]]] = {}
        self._taken: set[bytes] = set()
        self._lock = threading.Lock()
        self._stop, self._wake = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._serve, daemon=True, name="tcp pairs")
        self._thread.start()

    def take(self, task: str, streams: int, wait_s: float) -> list[socket.socket]:
        """Return the connections of a task in the order of their streams.

        Raises:
            TimeoutError: they did not all come.
        """
        end = monotonic() + wait_s
        found: dict[int, socket.socket] = {}
        while len(found) < streams:
            try:
                stream, connection = self._queue(digest(task.encode())).get(timeout=max(0.01, end - monotonic()))
            except queue.Empty:
                for c in found.values():
                    c.close()
                raise TimeoutError(f"no connection within {wait_s:.0f} s") from None
            found[stream] = connection
        return [found[i] for i in sorted(found)]

    def close(self) -> None:
        """Listen no longer."""
        os.write(self._wake, b".")
        self._thread.join(10)
        os.close(self._wake)

    def _queue(self, task: bytes) -> queue.Queue[tuple[int, socket.socket]]:
        with self._lock:
            return self._waiting.setdefault(task, queue.Queue())

    def _serve(self) -> None:
        strangers: dict[socket.socket, tuple[float, bytearray]] = {}  # the oldest first
        with selectors.DefaultSelector() as selector, self._socket:
            selector.register(self._socket, selectors.EVENT_READ)
            selector.register(self._stop, selectors.EVENT_READ)

            def drop(connection: socket.socket, *, close: bool = True) -> None:
                del strangers[connection]
                selector.unregister(connection)
                if close:
                    connection.close()

            while True:
                oldest = next(iter(strangers.values()), None)
                ready = selector.select(None if oldest is None else max(0.0, oldest[0] + STALL_S - monotonic()))
                for key, _ in ready:
                    if key.fd == self._stop:
                        break
                    if key.fileobj is self._socket:
                        with contextlib.suppress(OSError):
                            connection = self._socket.accept()[0]
                            connection.setblocking(False)
                            if len(strangers) >= STRANGERS:
                                drop(next(iter(strangers)))
                            strangers[connection] = (monotonic(), bytearray())
                            selector.register(connection, selectors.EVENT_READ)
                    elif key.fileobj in strangers:
                        connection = key.fileobj
                        known = self._greet(connection, strangers[connection][1])
                        if known is not None:
                            drop(connection, close=not known)
                else:
                    for connection, (since, _) in list(strangers.items()):
                        if since + STALL_S <= monotonic():
                            drop(connection)
                    continue
                break
            for connection in list(strangers):
                drop(connection)
        os.close(self._stop)

    def _greet(self, connection: socket.socket, said: bytearray) -> bool | None:
        """Read on; tell whether it is one of ours, or None where that is not known yet."""
        try:
            data = connection.recv(GREETING - len(said))
            said += data
            if not data:
                return False
            if len(said) < GREETING:
                return None
            task, stream, nonce = bytes(said[:32]), said[32], bytes(said[33:49])
            name = task + bytes([stream])
            if name in self._taken or not same(bytes(said[49:]), derived(self._key, b"call", name, nonce)):
                return False
            connection.settimeout(STALL_S)
            connection.sendall(derived(self._key, b"take", name, nonce))
        except BlockingIOError:
            return None
        except OSError:
            return False
        self._taken.add(name)
        self._queue(task).put((stream, connection))
        return True


def call(address: str, port: int, task: str, streams: int, key: bytes) -> list[socket.socket]:
    """Return connections to the listener of another node, which has the same key.

    Raises:
        OSError: it cannot be reached, or who answers does not know the key; TimeoutError is one.
    """
    out: list[socket.socket] = []
    try:
        for stream in range(streams):
            c = socket.create_connection((address, port), timeout=STALL_S)
            out.append(c)
            c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            name, nonce = digest(task.encode()) + bytes([stream]), os.urandom(16)
            c.sendall(name + nonce + derived(key, b"call", name, nonce))
            said = b""
            while len(said) < 32 and (data := c.recv(32 - len(said))):
                said += data
            if not same(said, derived(key, b"take", name, nonce)):
                raise ConnectionRefusedError(errno.ECONNREFUSED, "who listens there is none of this job's nodes")
    except OSError:
        for c in out:
            c.close()
        raise
    return out


def exchange(connections: list[socket.socket], *, first: bool, seconds: float) -> Exchange:
    """Ping, then send one way, then the other; `first` is the side that connected, which pings and sends first."""
    try:
        for c in connections:
            c.settimeout(STALL_S)
            c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        latency = _ping(connections[0], first)
        if first:
            _send_all(connections, seconds)
            arrived = _receive_all(connections)
        else:
            arrived = _receive_all(connections)
            _send_all(connections, seconds)
    except TimeoutError:
        return Exchange(error=f"no byte for {STALL_S:.0f} s")
    except OSError as e:
        return Exchange(error=f"connection lost: {e.strerror or e}")
    finally:
        for c in connections:
            with contextlib.suppress(OSError):
                c.close()
    samples = rates(arrived, seconds)
    if not samples:
        return Exchange(latency_us=latency, error="too little data arrived to compute a rate")
    return Exchange(received_gb_s=median(samples), samples=samples, spread=spread(samples), latency_us=latency)


def rates(arrived: list[tuple[float, int]], seconds: float) -> tuple[float, ...]:
    """Return GB/s in each part of the window, from (time in s, bytes that came then)."""
    if not arrived:
        return ()
    begin = min(t for t, _ in arrived) + WARM_S
    part = seconds / WINDOWS
    sums = [0] * WINDOWS
    for t, n in arrived:
        k = int((t - begin) / part) if t >= begin else -1
        if 0 <= k < WINDOWS:
            sums[k] += n
    return tuple(s / part / 1e9 for s in sums) if any(sums) else ()


def _ping(connection: socket.socket, first: bool) -> float | None:
    times = []
    for _ in range(PINGS):
        if first:
            start = monotonic()
            connection.sendall(b"p")
            _exactly(connection, 1)
            times.append(monotonic() - start)
        else:
            _exactly(connection, 1)
            connection.sendall(b"p")
    return median(times) / 2 * 1e6 if times else None


def _exactly(connection: socket.socket, size: int) -> None:
    while size:
        got = len(connection.recv(size))
        if not got:
            raise ConnectionResetError("the other node closed it")
        size -= got


def _send_all(connections: list[socket.socket], seconds: float) -> None:
    block = bytes((i * 131 + 7) & 255 for i in range(BLOCK - 1))
    end = monotonic() + WARM_S + seconds + 0.1

    def one(c: socket.socket) -> None:
        while monotonic() < end:
            c.sendall(MORE + block)
        c.sendall(LAST + block)

    _together(one, connections)


def _receive_all(connections: list[socket.socket]) -> list[tuple[float, int]]:
    """Return (time, bytes) of every piece that came, on all streams."""
    arrived: list[tuple[float, int]] = []

    def one(c: socket.socket) -> None:
        buffer = bytearray(BLOCK)
        view = memoryview(buffer)
        while True:
            at = 0
            while at < BLOCK:
                got = c.recv_into(view[at:])
                if not got:
                    raise ConnectionResetError("the other node closed it")
                arrived.append((monotonic(), got))
                at += got
            if buffer[:1] == LAST:
                return

    _together(one, connections)
    return arrived


def _together(work: Callable[[socket.socket], None], connections: list[socket.socket]) -> None:
    """Run the work on every connection at once; the first error of any is raised when all have ended."""
    errors: list[OSError] = []

    def guarded(c: socket.socket) -> None:
        try:
            work(c)
        except OSError as e:
            errors.append(e)

    threads = [threading.Thread(target=guarded, args=(c,), daemon=True) for c in connections]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]
