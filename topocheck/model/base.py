"""The words every fact is made of: a value that may be missing, evidence, states and verdicts."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, TypeVar

import msgspec

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


def unparsable(text: str) -> Missing:
    """Return the Missing for an answer of unknown form; keeps at most 80 characters of it."""
    return Missing(Reason.UNPARSABLE, text.strip()[:80])


def small_number(text: str) -> int | None:
    """Return the number that 1 to 9 ASCII digits name, such as an index or a port, or None for any other text.

    `int` takes other scripts' digits and breaks on thousands of them (sys.get_int_max_str_digits).
    """
    return int(text) if len(text) < 10 and text.isascii() and text.isdigit() else None


def known(value: T | Missing) -> TypeIs[T]:
    """Tell whether `value` is there."""
    return not isinstance(value, Missing)


def value_or(value: T | Missing, default: T) -> T:
    """Return `value`, or `default` where it is missing. For rendering and sorting, never for judging."""
    return default if isinstance(value, Missing) else value


class Evidence(msgspec.Struct, frozen=True):
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
        join = "/" if self.source.startswith("/") else " "
        return tuple(
            Evidence(f"{self.source}{join}{n}" if self.source else n, self.raw[n]) for n in names if n in self.raw
        )


class State(enum.StrEnum):
    """State of a check or finding (docs/architecture.md, "Words")."""

    OK = "ok"
    NOTE = "note"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"
    NOT_APPLICABLE = "not_applicable"


class Verdict(enum.StrEnum):
    """Verdict of a GPUDirect road."""

    YES = "yes"
    DEGRADED = "degraded"
    NO = "no"
    UNKNOWN = "unknown"


class ReasonStep(msgspec.Struct, frozen=True):
    """One link of a chain of reasons.

    Attributes:
        text: the rule in words.
        effect: what it did to the verdict ("yes", "degraded", "no", "unknown", or "info" for no effect).
        evidence: what the machine said.
        fix: what to do about it, where there is something to do.
    """

    text: str
    effect: str
    evidence: tuple[Evidence, ...] = ()
    fix: str | None = None


class InputError(Exception):
    """Input from elsewhere that cannot be used: one line with the file, the place in it and what was expected.

    Commands print it and exit with 2.
    """


class ProbeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How one probe went. `state` is ok, empty, failed or timed_out; `ms` is its wall time."""

    name: str
    state: str
    ms: float
    detail: str = ""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What a check found on one subject.

    Attributes:
        id: id of the check, `area.name`.
        state: see State.
        subject: address, label or name of what it is about; "node" for the whole.
        title: one sentence, with numbers.
        consequence: what a user feels ("this GPU copies at half rate").
        evidence: what the machine said.
        rule: what it was compared with.
        fix: command or setting, with its price where it has one.
    """

    id: str
    state: State
    subject: str
    title: str
    consequence: str = ""
    evidence: tuple[Evidence, ...] = ()
    rule: str = ""
    fix: str | None = None
