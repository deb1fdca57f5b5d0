"""What can be asked of a machine, and how a question and its answer are written down.

Everything a probe learns comes through `Host`. A question is a kind and its arguments; `key` writes it as one
text, such as `read:/proc/version` or `nvml:DeviceGetName|0`. The answer is a plain value (text, bytes, number,
list, mapping or None) or a `HostError`. So a recording is nothing but questions with their answers, and a probe
cannot tell a live machine from one.
"""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from topocheck.model.base import Missing, ProbeStatus, Reason

Answer = Any
"""None, bool, int, float, str, bytes, or a list or str-keyed dict of these."""


T = TypeVar("T")

_RFC_3339 = re.compile(
    r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9]:([0-5][0-9]|60)"
    r"(\.[0-9]+)?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
)
"""RFC 3339, section 5.6, with the upper-case letters that it recommends."""
_PROBE_STATES = ("ok", "empty", "failed", "timed_out")


class HostError(Exception):
    """No answer, with the reason. `detail` is the machine's own word (an errno name, an NVML error)."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(f"{reason.value}: {detail}" if detail else reason.value)
        self.reason = reason
        self.detail = detail

    def __reduce__(self) -> tuple[type[HostError], tuple[Reason, str]]:
        return HostError, (self.reason, self.detail)

    def missing(self) -> Missing:
        """Return the Missing that stands for this error in a fact."""
        return Missing(self.reason, self.detail)


class CommandResult(msgspec.Struct, frozen=True):
    """Exit status and output of a command; a signal gives the negative of its number."""

    rc: int
    stdout: str
    stderr: str


class FileStat(msgspec.Struct, frozen=True):
    """What `stat` said: `kind` is file, dir, char, block, link, fifo or socket; sizes in bytes, times in seconds."""

    kind: str
    size_bytes: int
    uid: int
    gid: int
    mode: int
    mtime: int
    device: int
    rdev: int


class _Process(msgspec.Struct, frozen=True):
    """The form of what `Host.process` gives; a recording may lack any of it."""

    uid: int | None = None
    gid: int | None = None
    home: str | None = None
    affinity: str | None = None
    python_version: str | None = None
    sys_path: list[str] | None = None


class Backend(Protocol):
    """What answers questions: the live machine, a recording, or a described machine of the tests."""

    def ask(self, kind: str, *args: str | int) -> Answer:
        """Return the answer to one question.

        Raises:
            HostError: there is none; says why.
        """


def key(kind: str, args: Sequence[str | int]) -> str:
    """Return the text under which a question and its answer are recorded."""
    return f"{kind}:{'|'.join(map(str, args))}"


def _unexpected(kind: str, args: Sequence[str | int]) -> HostError:
    """Return the error for an answer of another form than the question has."""
    return HostError(Reason.UNPARSABLE, key(kind, args))


class Host:
    """The questions, typed. `source` is `live` or the name of the recording.

    Every method raises HostError where the machine gives no answer, and `unparsable` where the answer is of another
    form than it should be: a recording may hold anything. Paths are absolute.
    """

    def __init__(self, backend: Backend, source: str = "live") -> None:
        self.backend = backend
        self._ask = backend.ask
        self.source = source

    def _typed(self, form: type[T], kind: str, *args: str | int) -> T:
        """Return an answer that is of this form.

        Raises:
            HostError: there is no answer, or it is of another form.
        """
        answer = self._ask(kind, *args)
        try:
            return msgspec.convert(answer, form)
        except (msgspec.ValidationError, RecursionError):
            raise _unexpected(kind, args) from None

    def read_bytes(self, path: str, limit: int = 1 << 20) -> bytes:
        """Return at most `limit` bytes of a file, from its start, in as few reads as it takes."""
        args = (path,) if limit == 1 << 20 else (path, limit)
        answer = self._ask("read", *args)
        if isinstance(answer, bytes):
            return answer
        if isinstance(answer, str):
            return answer.encode("utf-8", "surrogatepass")
        raise _unexpected("read", args)

    def read_text(self, path: str, limit: int = 1 << 20) -> str:
        """Return a file as text; bytes that are not UTF-8 become U+FFFD."""
        return self.read_bytes(path, limit).decode("utf-8", "replace")

    def read_lines(self, path: str, *prefixes: str) -> list[str]:
        """Return the lines of a file that begin with one of `prefixes`, and nothing else of it.

        For files that also hold what must not be recorded (`/proc/self/status`, `/proc/cpuinfo`).
        """
        return self._typed(list[str], "lines", path, *prefixes)

    def listdir(self, path: str) -> list[str]:
        """Return the sorted names in a folder."""
        return self._typed(list[str], "list", path)

    def readlink(self, path: str) -> str:
        """Return the target of a symbolic link as written."""
        return self._typed(str, "readlink", path)

    def realpath(self, path: str) -> str:
        """Return the path with every symbolic link resolved; the path must exist."""
        return self._typed(str, "realpath", path)

    def stat(self, path: str) -> FileStat:
        """Return what `stat` says of a path (links followed)."""
        return self._typed(FileStat, "stat", path)

    def statvfs(self, path: str) -> tuple[int, int]:
        """Return (total, available to this user) bytes of the file system that holds `path`."""
        return self._typed(tuple[int, int], "statvfs", path)

    def access(self, path: str, mode: str) -> bool:
        """Tell whether this user may open `path`; `mode` is made of r, w and x."""
        return self._typed(bool, "access", path, mode)

    def run(self, argv: Sequence[str], timeout_s: int = 10) -> CommandResult:
        """Run a command without a shell, under LC_ALL=C, with no input. Absent from this machine: HostError."""
        return self._typed(CommandResult, "run", timeout_s, *argv)

    def environ(self) -> dict[str, str]:
        """Return the variables of this process that topocheck may look at (host/filters.py)."""
        return self._typed(dict[str, str], "environ")

    def kernel_options(self) -> list[str]:
        """Return the options of the kernel's command line that matter here (host/filters.py)."""
        return self._typed(list[str], "kernel_options")

    def conf_lines(self, path: str) -> list[str]:
        """Return the lines of an NCCL settings file that are of the form NAME=VALUE, as `number<TAB>text`."""
        return self._typed(list[str], "conf", path)

    def pci_names(self, ids: Sequence[str]) -> dict[str, list[str | None]]:
        """Return id (`10de:2330`) -> [vendor name, device name] from the system's pci.ids (host/pci_ids.py)."""
        names = self._typed(dict[str, list[str | None]], "pci_names", *ids)
        if any(len(n) != 2 for n in names.values()):
            raise _unexpected("pci_names", ids)
        return names

    def process(self) -> dict[str, Any]:
        """Return facts of this process: uid, gid, home, affinity (kernel list), python_version, sys_path."""
        facts = self._typed(dict[str, Any], "process")
        try:
            msgspec.convert(facts, _Process)
        except (msgspec.ValidationError, RecursionError):
            raise _unexpected("process", ()) from None
        return facts

    def psutil(self, call: str) -> Answer:
        """Return what a call of psutil said, as plain values: `cpu_count_physical`, `net_addresses`..."""
        return self._ask("psutil", call)

    def nvml(self, call: str, *args: str | int) -> Answer:
        """Return what NVML said to `nvml<call>`, as plain values (host/nvml_calls.py)."""
        return self._ask("nvml", call, *args)

    def cuda(self, call: str, *args: str | int) -> Answer:
        """Return what the CUDA driver said to a call, as plain values (host/cuda_calls.py)."""
        return self._ask("cuda", call, *args)

    def now(self) -> str:
        """Return the time of this run, RFC 3339 in UTC, whole seconds."""
        now = self._typed(str, "now")
        if not _RFC_3339.fullmatch(now):
            raise _unexpected("now", ())
        return now

    def duration_ms(self, probe: str) -> float:
        """Return how long a probe took when the machine was asked."""
        ms = self._typed(float, "duration", probe)
        if not math.isfinite(ms) or ms < 0:
            raise _unexpected("duration", (probe,))
        return ms

    def probe_status(self, probe: str) -> ProbeStatus:
        """Return how a probe went when the machine was asked."""
        said = self._typed(dict[str, Any], "probe", probe)
        try:
            status = msgspec.convert({**said, "name": probe}, ProbeStatus)
        except (msgspec.ValidationError, RecursionError):
            raise _unexpected("probe", (probe,)) from None
        if status.state not in _PROBE_STATES or not math.isfinite(status.ms) or status.ms < 0:
            raise _unexpected("probe", (probe,))
        return status

    def join(self, *parts: str) -> str:
        """Return a path from its parts."""
        return posixpath.join(*parts)


class RecordedBackend:
    """Answers from a recording.

    What was never asked gives `not_recorded`, or `unasked` where the caller knows better (the time was up).
    """

    def __init__(self, answers: Mapping[str, Answer], unasked: HostError | None = None) -> None:
        self.answers = answers
        self.unasked = unasked

    def ask(self, kind: str, *args: str | int) -> Answer:
        """Return the recorded answer."""
        try:
            answer = self.answers[key(kind, args)]
        except KeyError:
            error = self.unasked or HostError(Reason.NOT_RECORDED, key(kind, args))
            raise HostError(error.reason, error.detail) from None
        if isinstance(answer, HostError):
            raise HostError(answer.reason, answer.detail)
        return answer


class Recorder:
    """A backend around another that keeps each answer, error or value, under its key. Asks each question once."""

    def __init__(self, inner: Backend, answers: dict[str, Answer] | None = None) -> None:
        self.inner = inner
        self.answers: dict[str, Answer] = {} if answers is None else answers

    def ask(self, kind: str, *args: str | int) -> Answer:
        """Return the kept answer, or ask and keep it."""
        k = key(kind, args)
        if k not in self.answers:
            try:
                self.answers[k] = self.inner.ask(kind, *args)
            except HostError as e:
                self.answers[k] = e
        answer = self.answers[k]
        if isinstance(answer, HostError):
            raise HostError(answer.reason, answer.detail)
        return answer
