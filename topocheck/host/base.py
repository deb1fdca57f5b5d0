"""What can be asked of a machine, and how a question and its answer are written down.

Everything a probe learns comes through `Host`. A question is a kind and its arguments; `key` writes it as one
text, such as `read:/proc/version` or `nvml:DeviceGetName|0`. The answer is a plain value (text, bytes, number,
list, mapping or None) or a `HostError`. So a recording is nothing but questions with their answers, and a probe
cannot tell a live machine from one.
"""

from __future__ import annotations

import itertools
import math
import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from topocheck.model.base import Missing, ProbeStatus, Reason, is_lost
from topocheck.model.node import MadeFrom

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


def each_named(start: str, separator: str, end: str, arguments: Iterable[tuple[int, ...]]) -> list[str]:
    """Return the names of one call with each of many arguments, all of the same number.

    There are as many as pairs of devices, and one form for all takes a third of the time of joining each.
    """
    every = list(arguments)
    form = start + separator.join(["%d"] * len(every[0])) + end if every else ""
    return [form % args for args in every]


def _unexpected(kind: str, args: Sequence[str | int]) -> HostError:
    """Return the error for an answer of another form than the question has."""
    return HostError(Reason.UNPARSABLE, key(kind, args))


MAX_NAMES = 1 << 14
"""Names in one folder. What is above this bound, or one of the next, is not looked at, and `Host.left_out` says so."""
MAX_LINES = 1 << 12
"""Lines with the prefixes that were asked for in one file."""
MAX_VARIABLES = 1 << 10
MAX_VALUE_CHARS = 1 << 14
"""Characters of a variable; the kernel allows 128 KiB (MAX_ARG_STRLEN), and the longest of interest are node lists."""
MAX_OPTIONS = 1 << 10
"""Options on the kernel's command line, which has at most 4096 characters (COMMAND_LINE_SIZE)."""
MAX_LOST = 1 << 10
"""Lost answers to one call, named one by one."""


class Host:
    """The questions, typed. `source` is `live` or the name of the recording.

    Every method raises HostError where the machine gives no answer, and `unparsable` where the answer is of another
    form than it should be: a recording may hold anything. Paths are absolute.

    `left_out` names, in words, what was too much to look at.
    """

    def __init__(self, backend: Backend, source: str = "live") -> None:
        self.backend = backend
        self._ask = backend.ask
        self.source = source
        self.left_out: list[str] = []

    def records(self, kind: str, *args: str | int) -> bool:
        """Tell whether a recording holds an answer to a question; a live machine holds none."""
        backend = self.backend
        while isinstance(backend, Watch):
            backend = backend.inner
        return isinstance(backend, RecordedBackend) and key(kind, args) in backend.answers

    def at_most(self, items: list[T], most: int, what: str) -> list[T]:
        """Return the first `most` of some items; how many there are stands in `left_out` where that is more."""
        if len(items) > most:
            self.left_out.append(f"{what}: the first {most} of {len(items)}")
        return items[:most]

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
            return answer[:limit]
        if isinstance(answer, str):
            return answer.encode("utf-8", "surrogatepass")[:limit]
        raise _unexpected("read", args)

    def read_text(self, path: str, limit: int = 1 << 20) -> str:
        """Return a file as text; bytes that are not UTF-8 become U+FFFD."""
        return self.read_bytes(path, limit).decode("utf-8", "replace")

    def read_lines(self, path: str, *prefixes: str) -> list[str]:
        """Return the lines of a file that begin with one of `prefixes`, and nothing else of it.

        For files that also hold what must not be recorded (`/proc/self/status`, `/proc/cpuinfo`).
        """
        return self.at_most(self._typed(list[str], "lines", path, *prefixes), MAX_LINES, f"lines of {path}")

    def listdir(self, path: str) -> list[str]:
        """Return the sorted names in a folder."""
        return self.at_most(self._typed(list[str], "list", path), MAX_NAMES, f"names in {path}")

    def readlink(self, path: str) -> str:
        """Return the target of a symbolic link as written."""
        return self._typed(str, "readlink", path)

    def realpath(self, path: str) -> str:
        """Return the path with every symbolic link resolved; the path must exist."""
        return self._typed(str, "realpath", path)

    def stat(self, path: str) -> FileStat:
        """Return what `stat` says of a path (links followed)."""
        return self._typed(FileStat, "stat", path)

    def statvfs(self, path: str) -> tuple[int, int | None]:
        """Return (total, available to this user) bytes of the file system that holds `path`.

        What is available is None where a text says the size alone (`mount`).
        """
        return self._typed(tuple[int, int | None], "statvfs", path)

    def access(self, path: str, mode: str) -> bool:
        """Tell whether this user may open `path`; `mode` is made of r, w and x."""
        return self._typed(bool, "access", path, mode)

    def run(self, argv: Sequence[str], timeout_s: int = 10) -> CommandResult:
        """Run a command without a shell, under LC_ALL=C, with no input. Absent from this machine: HostError."""
        return self._typed(CommandResult, "run", timeout_s, *argv)

    def environ(self) -> dict[str, str]:
        """Return the variables of this process that topocheck may look at (host/live/filters.py)."""
        variables = self._typed(dict[str, str], "environ")
        fit = [(k, v) for k, v in variables.items() if len(k) <= MAX_VALUE_CHARS and len(v) <= MAX_VALUE_CHARS]
        if len(fit) < len(variables):
            self.left_out.append(f"variables of more than {MAX_VALUE_CHARS} characters: {len(variables) - len(fit)}")
        return dict(self.at_most(fit, MAX_VARIABLES, "variables of the environment"))

    def kernel_options(self) -> list[str]:
        """Return the options of the kernel's command line that matter here (host/live/filters.py)."""
        return self.at_most(self._typed(list[str], "kernel_options"), MAX_OPTIONS, "kernel options")

    def kernel_log(self) -> list[str]:
        """Return what the kernel's log says of GPUs, NICs and PCI ports, oldest first (host/live/kmsg.py)."""
        return self.at_most(self._typed(list[str], "kernel_log"), MAX_LINES, "lines of the kernel's log")

    def conf_lines(self, path: str) -> list[str]:
        """Return the lines of an NCCL settings file that are of the form NAME=VALUE, as `number<TAB>text`."""
        return self.at_most(self._typed(list[str], "conf", path), MAX_VARIABLES, f"settings in {path}")

    def pci_names(self, ids: Sequence[str]) -> dict[str, list[str | None]]:
        """Return id (`10de:2330`) -> [vendor name, device name] from the system's pci.ids (host/live/pci_ids.py)."""
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

    def lspci(self, address: str) -> str:
        """Return the lines that lspci printed of a function, where a recording was made from its text."""
        return self._typed(str, "lspci", address)

    def sources(self) -> MadeFrom:
        """Return the texts that a recording was made from (readers/), where it was made from texts."""
        return self._typed(MadeFrom, "sources")

    def psutil(self, call: str) -> Answer:
        """Return what a call of psutil said, as plain values: `cpu_count_physical`, `net_addresses`..."""
        return self._ask("psutil", call)

    def nvml(self, call: str, *args: str | int) -> Answer:
        """Return what NVML said to `nvml<call>`, as plain values (host/live/nvml.py)."""
        return self._ask("nvml", call, *args)

    def nvml_each(self, call: str, arguments: Iterable[tuple[int, ...]]) -> list[Answer | HostError]:
        """Return what NVML said to one call with each of many arguments, an error where there is no answer.

        For questions about pairs, of which there are as many as devices squared.
        """
        return _each(self.backend, "nvml", call, arguments)

    def cuda(self, call: str, *args: str | int) -> Answer:
        """Return what the CUDA driver said to a call, as plain values (host/live/cuda.py)."""
        return self._ask("cuda", call, *args)

    def cuda_each(self, call: str, arguments: Iterable[tuple[int, ...]]) -> list[Answer | HostError]:
        """Return what the CUDA driver said to one call with each of many arguments, as `nvml_each` does."""
        return _each(self.backend, "cuda", call, arguments)

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
        return msgspec.structs.replace(status, left_out=())

    def join(self, *parts: str) -> str:
        """Return a path from its parts."""
        return posixpath.join(*parts)


_NEVER = object()


class RecordedBackend:
    """Answers from a recording.

    What was never asked gives `not_recorded`, or `unasked` where the caller knows better (the time was up).
    """

    def __init__(self, answers: Mapping[str, Answer], unasked: HostError | None = None) -> None:
        self.answers = answers
        self.unasked = unasked

    def ask(self, kind: str, *args: str | int) -> Answer:
        """Return the recorded answer."""
        # As `key` has it, without a call: a machine has thousands of questions, most of them of one argument.
        name = f"{kind}:{args[0]}" if len(args) == 1 else f"{kind}:{'|'.join(map(str, args))}"
        answer = self.answers.get(name, _NEVER)
        if answer is _NEVER:
            error = self.unasked or HostError(Reason.NOT_RECORDED, name)
            raise HostError(error.reason, error.detail)
        if isinstance(answer, HostError):
            raise HostError(answer.reason, answer.detail)
        return answer

    def ask_each(self, kind: str, call: str, arguments: Iterable[tuple[int, ...]]) -> list[Answer | HostError]:
        """Return the recorded answers to one call with each of many arguments; an error where there is none."""
        names = each_named(f"{kind}:{call}|", "|", "", arguments)
        out = list(map(self.answers.get, names, itertools.repeat(_NEVER)))
        if _NEVER in out:
            told = zip(names, out, strict=True)
            out = [a if a is not _NEVER else self.unasked or HostError(Reason.NOT_RECORDED, name) for name, a in told]
        return out


class Watch:
    """A backend around another that takes down the questions whose answer was lost (`is_lost`), with the reason.

    Of one call, which may be asked of every pair of devices, no more than MAX_LOST are named.
    """

    def __init__(self, inner: Backend) -> None:
        self.inner = inner
        self.lost: dict[str, Missing] = {}
        self._times: Counter[str] = Counter()

    def ask(self, kind: str, *args: str | int) -> Answer:
        """Return the answer of the other."""
        try:
            return self.inner.ask(kind, *args)
        except HostError as e:
            if kind not in ("probe", "duration"):  # these are not the machine's
                self.note(key(kind, args), e.missing())
            raise

    def ask_each(self, kind: str, call: str, arguments: Iterable[tuple[int, ...]]) -> list[Answer | HostError]:
        """Return the other's answers to one call with each of many arguments; an error where there is none."""
        every = list(arguments)
        answers = _each(self.inner, kind, call, every)
        if HostError in set(map(type, answers)):
            for args, answer in zip(every, answers, strict=True):
                if isinstance(answer, HostError):
                    self.note(f"{kind}:{call}|{'|'.join(map(str, args))}", answer.missing())
        return answers

    def note(self, question: str, why: Missing) -> None:
        """Take down a question without an answer, where the answer is lost."""
        if is_lost(why):
            call = question.partition("|")[0]
            self._times[call] += 1
            if self._times[call] <= MAX_LOST:
                self.lost[question] = why

    @property
    def left_out(self) -> tuple[str, ...]:
        """What was not taken down, in words."""
        return tuple(
            f"lost answers to {call}: the first {MAX_LOST} of {n}" for call, n in self._times.items() if n > MAX_LOST
        )


def _each(backend: Backend, kind: str, call: str, arguments: Iterable[tuple[int, ...]]) -> list[Answer | HostError]:
    together = getattr(backend, "ask_each", None)
    if together is not None:
        answers: list[Answer | HostError] = together(kind, call, arguments)
        return answers
    return [_answer_or_error(backend, kind, call, *args) for args in arguments]


def _answer_or_error(backend: Backend, kind: str, *args: str | int) -> Answer | HostError:
    try:
        return backend.ask(kind, *args)
    except HostError as e:
        return e
