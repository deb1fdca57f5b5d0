"""One GPU being asked: each answer is checked for its form, kept as evidence, and a failure loses only itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from topocheck.host.base import Answer, Host, HostError
from topocheck.model.address import format_cpulist, normalize_address
from topocheck.model.base import Missing, Reason, unparsable

LOST = "NVMLError_GpuIsLost"
RESET_REQUIRED = "NVMLError_ResetRequired"
_EVIDENCE_CHARS = 200
_WORD_BITS = 64

GONE = frozenset(
    {LOST, "NVMLError_Unknown", "NVMLError_GpuNotFound", "NVMLError_IrqIssue", "NVMLError_InsufficientPower",
     RESET_REQUIRED, "NVMLError_OperatingSystem"}
)  # fmt: skip
"""Errors which, when they answer every question of identity, mean that the handle cannot be had."""


class Asked:
    """Questions to one GPU, and what came back.

    Once NVML says that the GPU is lost, nothing more is asked of it: each further call may wait in the kernel.

    Attributes:
        raw: call without the device -> answer as text, `!reason: detail` where none came.
        lost: the Missing that said that the GPU is lost, or None.
        trouble: the last error that speaks of the GPU itself and not of the call, or empty.
    """

    def __init__(self, host: Host, index: int) -> None:
        self.host = host
        self.index = index
        self.raw: dict[str, str] = {}
        self.lost: Missing | None = None
        self.trouble = ""

    def answer(self, call: str, *args: str | int, keep: bool = True) -> Answer | Missing:
        """Return the answer or why there is none; `keep` it as evidence."""
        if self.lost is not None:
            return self.lost
        try:
            answer = self.host.nvml(call, self.index, *args)
        except HostError as e:
            answer = e.missing()
            if e.detail == LOST:
                self.lost = answer
            if e.detail in (LOST, RESET_REQUIRED):
                self.trouble = e.detail
        if keep:
            self.raw[evidence_name(call, args)] = evidence_text(answer)
        return answer

    def integer(self, call: str, *args: str | int, keep: bool = True) -> int | Missing:
        """Return an answer that is a whole number of at least 0."""
        return as_integer(self.answer(call, *args, keep=keep))

    def text(self, call: str, *args: str | int) -> str | Missing:
        """Return an answer that is text; empty text is absent."""
        return as_text(self.answer(call, *args))

    def flag(self, call: str, *args: str | int) -> bool | Missing:
        """Return an answer that is 0 or 1."""
        return as_flag(self.integer(call, *args))

    def pair(self, call: str) -> tuple[int | Missing, int | Missing]:
        """Return an answer that is a list of two numbers."""
        answer = self.answer(call)
        if isinstance(answer, Missing):
            return answer, answer
        if not isinstance(answer, list) or len(answer) != 2:
            return unparsable(repr(answer)), unparsable(repr(answer))
        return as_integer(answer[0]), as_integer(answer[1])

    def struct(self, call: str, *args: str | int, keep: bool = True) -> dict[str, Any] | Missing:
        """Return an answer that is a mapping."""
        answer = self.answer(call, *args, keep=keep)
        return answer if isinstance(answer, (dict, Missing)) else unparsable(repr(answer))

    def words(self, call: str, *args: str | int) -> str | Missing:
        """Return an answer that is a set of numbers in 64-bit words, as a kernel list; the empty set is absent."""
        answer = self.answer(call, *args)
        return answer if isinstance(answer, Missing) else parse_words(answer)


def evidence_name(call: str, args: Sequence[str | int]) -> str:
    """Return the name a call has in `raw`: its arguments after the device in brackets."""
    return f"{call}({', '.join(map(str, args))})" if args else call


def evidence_text(answer: Answer | Missing) -> str:
    """Return an answer as evidence, at most 200 characters of it."""
    if isinstance(answer, int):
        return str(answer)[:_EVIDENCE_CHARS]
    if isinstance(answer, Missing):
        return f"!{answer}"
    if isinstance(answer, dict):
        return ", ".join(f"{k} {v}" for k, v in answer.items())[:_EVIDENCE_CHARS]
    return (answer if isinstance(answer, str) else repr(answer))[:_EVIDENCE_CHARS]


def as_integer(answer: Any) -> int | Missing:
    """Return a whole number from 0 to 2^64 - 1, the Missing it already is, or unparsable."""
    if isinstance(answer, Missing):
        return answer
    if isinstance(answer, int) and not isinstance(answer, bool) and 0 <= answer < 1 << 64:
        return answer
    return unparsable(repr(answer))


def as_text(answer: Any) -> str | Missing:
    """Return text that is not blank, the Missing it already is, absent for blank text, or unparsable."""
    if isinstance(answer, Missing):
        return answer
    if not isinstance(answer, str):
        return unparsable(repr(answer))
    return answer.strip() or Missing(Reason.ABSENT, "empty")


def as_flag(number: int | Missing) -> bool | Missing:
    """Return 0 and 1 as False and True."""
    if isinstance(number, Missing):
        return number
    return bool(number) if number in (0, 1) else unparsable(str(number))


def member(struct: dict[str, Any] | Missing, name: str) -> int | Missing:
    """Return one number of a struct; a member that this driver's struct lacks is unsupported."""
    if isinstance(struct, Missing):
        return struct
    if name not in struct:
        return Missing(Reason.UNSUPPORTED, f"no {name} in the answer of this driver")
    if struct[name] is None:  # a text that tells other members (readers/)
        return Missing(Reason.NOT_RECORDED, f"{name} is not in the given text")
    return as_integer(struct[name])


def parse_words(answer: Any) -> str | Missing:
    """Return the kernel list of a set given as 64-bit words, lowest first. Never raises."""
    if not isinstance(answer, list) or len(answer) > 1 << 10:
        return unparsable(repr(answer))
    numbers: list[int] = []
    for n, word in enumerate(answer):
        if not isinstance(word, int) or isinstance(word, bool) or not 0 <= word < 1 << _WORD_BITS:
            return unparsable(repr(answer))
        numbers += [n * _WORD_BITS + bit for bit in range(_WORD_BITS) if word >> bit & 1]
    return format_cpulist(numbers) or Missing(Reason.ABSENT, "empty set")


def parse_bus_id(answer: Any) -> str | Missing:
    """Return the address in a PCI info; `FFFFFFFF:FF:FF.0`, by which a hypervisor masks it, is not visible here."""
    if isinstance(answer, Missing):
        return answer
    bus_id = answer.get("busId") if isinstance(answer, dict) else None
    if not isinstance(bus_id, str):
        return unparsable(repr(answer))
    address = normalize_address(bus_id)
    if address is None:
        return unparsable(bus_id)
    if address.startswith("ffffffff:"):
        return Missing(Reason.NOT_VISIBLE_HERE, bus_id)
    return address
