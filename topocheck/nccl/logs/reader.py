"""Reads logs made with NCCL_DEBUG=INFO: any version, one rank or many mixed, in one pass and bounded memory.

A line is `host:pid:tid [cudaDev] NCCL INFO text`, behind whatever a launcher puts before it; warnings carry a time
and a source file (src/debug.cc). Lines of ranks interleave, so nothing depends on the order of lines of different
ranks. A line cut off in the middle is counted and passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from topocheck.nccl.logs.bandwidth_tests import BandwidthTests
from topocheck.nccl.logs.failures import FailureFinder
from topocheck.nccl.logs.findings import findings_of, mixed_ranks
from topocheck.nccl.logs.fitted import fitted
from topocheck.nccl.logs.handlers import HEAD, Handlers
from topocheck.nccl.logs.returns import is_return
from topocheck.nccl.logs.types import NcclLog

MAX_LINE = 8192
"""Longest line that is looked at; NCCL's own are shorter (1024 and a header)."""

_ANSI = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")
"""Control sequences of a terminal (ECMA-48, 5.4), which launchers and log collectors colour lines with."""
_MARK = re.compile(rb"NCCL (INFO|WARN) ")
_ASSIGNED = re.compile(rb"Assigned NET plugin (.{1,100}) to comm")
_FAILS = re.compile(
    rb"rror|ERROR|ailure|FAILED|ncclInvalid|ncclTimeout|Watchdog caught|imed out|timeout after|undefined symbol"
    rb"|not found \(req|[Ss]ignal[ :]|Segmentation fault|SIGBUS|[Kk]illed|oom_kill|oom-kill|Out Of Memory|DUE TO"
    rb"|CANCELLED|NVRM: Xid"
    rb"|loopback|exited on|exitcode|mpirun"
    rb"|BAD TERMINATION|terminate called|shared object|no kernel image|NODE_FAIL|[Gg]loo|Invalid number of GPUs"
    rb"|death signal"
    rb"|watchdog hang|monitoredBarrier|No CUDA GPUs|NVIDIA driver on your system|with CUDA enabled|unable to reliably"
    rb"|lost communication|daemon has unexpectedly|slots available|key verification failed|nvidia-container-cli"
    rb"|CDI device|device driver \"|retry count exceeded|nvshmem|with status=|has died|died unexpectedly"
    rb"|return code = -?[1-9]|initialization failed|Socket Timeout"
)
"""Lines of other programs that may tell of a failure."""
_NEXT_HEAD = re.compile(rb"(?<![^\s:\[\]<>])[^\s:\[\]<>]+:\d+:\d+ \[\d+\] (?:\S+:\d+ (?:\([^)]*\) )?)?$")


def lines_of(chunks: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Yield each line without its end, and whether it was cut to MAX_LINE. Keeps no more than one line."""
    rest = b""
    skipping = False
    for chunk in chunks:
        parts = (rest + chunk).split(b"\n")
        rest = parts.pop()
        for part in parts:
            if skipping:
                skipping = False
                continue
            yield part[:MAX_LINE].rstrip(b"\r"), len(part) > MAX_LINE
        if len(rest) > MAX_LINE:
            if not skipping:
                yield rest[:MAX_LINE], True
            skipping, rest = True, b""
    if rest and not skipping:
        yield rest.rstrip(b"\r"), False


def _tells_of_failure(line: bytes) -> bool:
    """Tell whether a line that is not NCCL's own is worth a closer look."""
    return _FAILS.search(line) is not None


def _were(n: int, one: str) -> str:
    """Return `1 line was`, `2 lines were`."""
    return f"1 {one} was" if n == 1 else f"{n} {one}s were"


def _without_next_head(text: bytes, before: bytes) -> bytes:
    """Return a message without the head of the next one in its line: both ranks' host is most often the same."""
    own = HEAD.search(before)
    at = text.rfind(own[1] + b":") if own else -1
    if at >= 0:
        return text[:at]
    head = _NEXT_HEAD.search(text)
    return text[: head.start()] if head else text


def _of_communicators(log: NcclLog) -> list[str]:
    """Return what to know where the lines of several communicators are mixed: only their inits name them."""
    twice = mixed_ranks(log)
    if not twice:
        return []
    rank = min(twice)
    shown = " and ".join(f"process {pid} of {host}" for host, pid in sorted(twice[rank])[:2])
    return [
        f"{len(log.comms)} communicators, of several groups or jobs: rank {rank} is {shown}, so ranks, transports"
        " and rings of them are mixed here; read the log of one job, or of one group, by itself"
    ]


class LogReader(Handlers):
    """Takes lines one by one; `finish` gives what they said."""

    def __init__(self) -> None:
        super().__init__()
        self._failures = FailureFinder(self.log)
        self._tests = BandwidthTests(self.log)
        self._last_error = False
        self._handlers = {
            b"Channel": self.channel,
            b"Ring": self.channel,
            b"Trees": self.trees,
            b"comm": self.comm,
            b"NCCL": self.version,
            b"RCCL": self.version,
            b"NET/IB": self.net,
            b"NET/Socket": self.net,
            b"NET/Plugin:": self.plugin,
            b"NET/Plugin": self.plugin,
            b"NET/OFI": self.plugin,
            b"Bootstrap": self.bootstrap,
            b"Bootstrap:": self.bootstrap,
            b"Using": self.using,
            b"cudaDriverVersion": self.driver,
            b"NVLS": self.nvls,
            b"Connected": self.connected,
            b"Pattern": self.pattern,
            b"===": self.tree_start,
            b"Loading": self.file,
            b"Could": self.file,
        }

    def feed(self, line: bytes, *, cut: bool = False) -> None:
        """Take one line."""
        log = self.log
        log.lines += 1
        if cut:
            log.long_lines += 1
        if b"\x1b" in line:
            line = _ANSI.sub(b"", line)
        at = line.find(b"NCCL ")
        if at < 0:
            self._plain(line)
            return
        m = _MARK.search(line, at)
        if m is None:
            if line.startswith(b"NCCL version", at):
                self.version(line[at:], b"")
            self._plain(line)
            return
        log.nccl_lines += 1
        before = _NEXT_HEAD.sub(b"", line[: m.start()])
        if before and _tells_of_failure(before):  # what a program printed into the same line
            self._failures.plain(before, log.lines)
        while m is not None:
            # Two processes may write into one line: each mark begins a message of its own.
            following = _MARK.search(line, m.end()) if line.find(b"NCCL ", m.end()) >= 0 else None
            end = following.start() if following else len(line)
            text = line[m.end() : end]
            if following:
                text = _without_next_head(text, line[: m.start()])
            self._message(line[: m.start()], m[1] == b"WARN", text)
            m = following

    def _plain(self, line: bytes) -> None:
        """Take a line that is not NCCL's own."""
        number = self.log.lines
        self._failures.program(line, number)
        if self._last_error and line.strip():
            self._last_error = False
            self._failures.last_error(line, number)
        elif line.endswith(b"Last error:"):
            self._last_error = True
        elif line.startswith(b"RCCL version"):
            self.version(line, b"")
        elif wrong := self._tests.take(line):
            self._failures.plain(wrong.encode(), number)
        elif _tells_of_failure(line):
            self._failures.plain(line, number)

    def _message(self, before: bytes, warning: bool, text: bytes) -> None:
        log = self.log
        if warning:
            head = HEAD.search(before)
            self.warning(head[1] if head else b"", text)
            process, thread, where = (head[1] + b":" + head[2], head[3], head[5] or b"") if head else (b"", b"", b"")
            self._failures.message(text, log.lines, warning=True, process=process, thread=thread, where=where)
            return
        if text.endswith(b"Destroy COMPLETE"):
            self._failures.destroyed(log.lines)
        if self._failures.wants_info and not is_return(text) and (head := HEAD.search(before)):
            self._failures.info(text, head[1] + b":" + head[2], head[3])
        word = text.partition(b" ")[0]
        handler = self._handlers.get(word)
        if handler is not None:
            handler(text, before)
            if word in (b"NET/IB", b"Could", b"NET/Plugin:", b"NET/Plugin", b"NET/OFI"):
                self._failures.message(text, log.lines)
            return
        if word.startswith(b"NCCL_"):
            self.setting(text)
        elif word[:4] in (b"GPU/", b"NET/"):
            self.paths_or_gdr(text)
        elif b" -> " in text and self._returned(text, before):
            return
        elif self._in_tree:
            self.tree_line(text)
        elif b" nranks " in text:
            self.init(text, before)
        elif b"coll channels" in text:
            self.count(text)
        else:
            self._rare(text, before)

    def _returned(self, text: bytes, before: bytes) -> bool:
        head = HEAD.search(before)
        process, thread = (head[1] + b":" + head[2], head[3]) if head else (b"", b"")
        return self._failures.returned(text, self.log.lines, process, thread)

    def _rare(self, text: bytes, before: bytes) -> None:
        if b"Direct RDMA" in text:
            self.paths_or_gdr(text)
        elif m := _ASSIGNED.match(text):
            self.using(b"Using network " + m[1], before)
        elif b"rror" in text or b"isabled" in text or b"not " in text or b"unsafe" in text or b"ailed" in text:
            self._failures.message(text, self.log.lines)

    def finish(self) -> NcclLog:
        """Return what was read, with the failures classified."""
        log = self.log
        log.failures = self._failures.failures(self.completed)
        log.hints = self._failures.hints(log.failures)
        log.findings = findings_of(log)
        log.failures = fitted(log, log.failures)
        log.notes += _of_communicators(log)
        if log.long_lines:
            log.notes.append(f"{_were(log.long_lines, 'line')} longer than {MAX_LINE} bytes and read only so far")
        if log.cut_lines:
            log.notes.append(f"{_were(log.cut_lines, 'line')} cut off in the middle and passed over")
        if log.undecodable:
            log.notes.append(f"{_were(log.undecodable, 'text')} not UTF-8; what could not be read is marked")
        if not log.nccl_lines and not log.tests and not log.failures:
            log.notes.append("no line of NCCL: was it run with NCCL_DEBUG=INFO, and does the log hold its output?")
        return log


def read_log(chunks: Iterable[bytes]) -> NcclLog:
    """Read a log that comes in pieces of bytes, as from a file or standard input. Never raises for its content."""
    reader = LogReader()
    for line, cut in lines_of(chunks):
        reader.feed(line, cut=cut)
    return reader.finish()


def read_text(text: str | bytes) -> NcclLog:
    """Read a log that is there as a whole."""
    return read_log([text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text])
