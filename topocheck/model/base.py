"""The words every fact is made of: a value that may be missing, evidence, states and verdicts."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec

from topocheck.model.exit_codes import EXIT_UNKNOWN, EXIT_USAGE

if TYPE_CHECKING:
    from typing_extensions import TypeIs

T = TypeVar("T")


class Reason(enum.StrEnum):
    """Why a value is not there. A closed set: a reader may switch over it."""

    ABSENT = "absent"
    """Looked for, and the machine has no such thing (no file, firmware did not say)."""
    DENIED = "denied"
    """There, but not for this user."""
    UNSUPPORTED = "unsupported"
    """The driver, kernel or device does not offer the question."""
    UNPARSABLE = "unparsable"
    """An answer came that is not of the known forms; `detail` holds it."""
    TIMED_OUT = "timed_out"
    """The question was asked and no answer came in time."""
    NOT_VISIBLE_HERE = "not_visible_here"
    """Exists outside this container, guest or cgroup, which hides it."""
    NOT_RECORDED = "not_recorded"
    """The recording was made by a version that did not ask."""


class Missing(msgspec.Struct, frozen=True):
    """Stands where a value would stand, and knows why there is none."""

    reason: Reason
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.reason.value}: {self.detail}" if self.detail else self.reason.value


ABSENT = Missing(Reason.ABSENT)
DENIED = Missing(Reason.DENIED)
UNSUPPORTED = Missing(Reason.UNSUPPORTED)
NOT_RECORDED = Missing(Reason.NOT_RECORDED)


REDACTED = "redacted"
"""Stands in a recorded text for what is never recorded; `redacted-1`, `redacted-2`... for what a snapshot replaced."""


_TROUBLE = frozenset(
    "EIO EAGAIN EBUSY EINTR EMFILE ENFILE ENOBUFS ENOMEM ENOSPC EREMOTEIO EHOSTDOWN EOVERFLOW ESTALE ESHUTDOWN "
    "NVMLError_Unknown NVMLError_IrqIssue NVMLError_Memory NVMLError_InsufficientResources "
    "NVMLError_OperatingSystem NVMLError_Uninitialized CUDA_ERROR_UNKNOWN CUDA_ERROR_OUT_OF_MEMORY "
    "CUDA_ERROR_NOT_INITIALIZED CUDA_ERROR_OPERATING_SYSTEM".split()
)
"""Errors which say nothing of what was asked about, but that something went wrong while it was asked."""


def is_lost(why: Missing) -> bool:
    """Tell whether an answer may exist and did not come; else its absence is the answer.

    That a file is absent, that a driver does not offer a call, or that a GPU is lost, is an answer. A refusal, a call
    that did not end, and an error of input and output are none.
    """
    if why.reason is Reason.UNSUPPORTED:
        return why.detail in _TROUBLE or is_crash(why)
    return why.reason in (Reason.DENIED, Reason.TIMED_OUT, Reason.NOT_RECORDED, Reason.UNPARSABLE)


CRASHED = "the process that asked it crashed"
"""How the detail of a question begins whose asking ended the child."""


def is_crash(why: Missing) -> bool:
    """Tell whether the asking ended the child: a recording has no more of it than this reason and its detail."""
    return why.reason is Reason.UNSUPPORTED and why.detail.startswith(CRASHED)


def unparsable(text: str) -> Missing:
    """Return the Missing for an answer of unknown form; keeps at most 80 characters of it."""
    return Missing(Reason.UNPARSABLE, text.strip()[:80])


def is_digits(text: str, most: int | None = None) -> bool:
    """Tell whether a text is one ASCII digit or more (`most` of them at most), and nothing else.

    `str.isdigit` takes `²` and the digits of other scripts for digits too; `int` does not take all of these.
    """
    return text.isascii() and text.isdigit() and (most is None or len(text) <= most)


def small_number(text: str) -> int | None:
    """Return the number that 1 to 9 ASCII digits name, such as an index or a port, or None for any other text.

    `int` takes other scripts' digits and breaks on thousands of them (sys.get_int_max_str_digits).
    """
    return int(text) if is_digits(text, 9) else None


def known(value: T | Missing) -> TypeIs[T]:
    """Tell whether `value` is there."""
    return not isinstance(value, Missing)


def value_or(value: T | Missing, default: T) -> T:
    """Return `value`, or `default` where it is missing. For rendering and sorting, never for judging."""
    return default if isinstance(value, Missing) else value


class Evidence(msgspec.Struct, frozen=True, gc=False):
    """One thing the machine said: the file or call, and its raw answer."""

    source: str
    raw: str


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """A fact that remembers its raw answers.

    Attributes:
        source: the folder or call that the answers come from, such as `/sys/bus/pci/devices/0000:3b:00.0`.
        raw: file name or call -> the raw answer (stripped); `!reason: detail` where none came.
    """

    source: str = ""
    raw: dict[str, str] = msgspec.field(default_factory=dict)

    def evidence(self, *names: str) -> tuple[Evidence, ...]:
        """Return the evidence for the named raw answers, in that order; names never asked are left out."""
        raw, start = self.raw, self.source and self.source + ("/" if self.source.startswith("/") else " ")
        return tuple([Evidence(start + n, raw[n]) for n in names if n in raw])


class State(enum.StrEnum):
    """State of a check or finding (docs/architecture.md, "Words")."""

    OK = "ok"
    NOTE = "note"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"
    NOT_APPLICABLE = "not_applicable"


class Verdict(enum.StrEnum):
    """Verdict of a GPUDirect path."""

    YES = "yes"
    DEGRADED = "degraded"
    NO = "no"
    UNKNOWN = "unknown"


Effect = Literal["yes", "degraded", "no", "unknown", "info"]
"""What a reason did to a verdict; `info` for no effect."""


class ReasonStep(msgspec.Struct, frozen=True, gc=False):
    """One link of a chain of reasons.

    Attributes:
        text: the rule in words.
        effect: what it did to the verdict.
        evidence: what the machine said.
        fix: what to do about it, where there is something to do.
    """

    text: str
    effect: Effect
    evidence: tuple[Evidence, ...] = ()
    fix: str | None = None


class InputError(Exception):
    """Input from elsewhere that cannot be used: one line with the file, the place in it and what was expected.

    Commands print it and exit with `exit_code`.

    Attributes:
        excerpt: lines of the text that show the place (model/excerpt.py).
    """

    exit_code = EXIT_USAGE

    def __init__(self, message: str = "", *, excerpt: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.excerpt = excerpt


class NotDeterminedError(InputError):
    """What was asked could not be determined, though it was asked rightly."""

    exit_code = EXIT_UNKNOWN


class OutputError(InputError):
    """The result is there but could not be written; one line: file, why, and what to do where it is known."""


class Hung(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A child process that did not come back from a question.

    Attributes:
        question: what it was asking (`nvml:DeviceGetCount`).
        pid: its number, as the parent saw it.
        state: the kernel's letter for it (proc(5): `D` waits in the kernel and cannot be killed); empty if not read.
        waits_in: the kernel function it waits in (/proc/PID/wchan); empty if not readable.
        waited_s: seconds since the question.
        cut_short: the time of the whole run ended, and not that of the probe: it may only be slow.
    """

    question: str
    pid: int = 0
    state: str = ""
    waits_in: str = ""
    waited_s: float = 0.0
    cut_short: bool = False


class ProbeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How one probe went. `state` is ok, empty, failed or timed_out; `ms` is its wall time.

    `left_out` names what was too much to look at, in words. `hung` is the last child that did not come back.
    """

    name: str
    state: str
    ms: float
    detail: str = ""
    left_out: tuple[str, ...] = ()
    hung: Hung | None = None


NEEDS_ROOT = "re-run topocheck as root"
"""The fix of a finding that says no more than that a run as root can judge; texts list these in one line."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What a check found on one subject.

    Attributes:
        id: id of the check, `area.name`; set when the check is run.
        state: see State.
        subject: address, label or name of what it is about, for people; "node" for the whole.
        devices: addresses of the PCI functions, or GUIDs of the devices of a fabric, that it is about; none where it is
            not about certain ones.
        title: one sentence, with numbers.
        consequence: what a user feels ("this GPU copies at half rate").
        evidence: what the machine said.
        rule: what it was compared with.
        fix: command or setting, with its price where it has one.
    """

    id: str = ""
    state: State
    subject: str
    devices: tuple[str, ...] = ()
    title: str
    consequence: str = ""
    evidence: tuple[Evidence, ...] = ()
    rule: str = ""
    fix: str | None = None

    @property
    def area(self) -> str:
        """The area of its check: the first part of the id, and the folder of `checks/` that the check is in."""
        return self.id.partition(".")[0]
