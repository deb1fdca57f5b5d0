"""Finds Python programs that ended by an exception: their tracebacks in a log, of many ranks mixed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import msgspec

from topocheck.nccl.logs.types import LogCause, LogFailure

_HEAD = b"Traceback (most recent call last)"
_FRAME = b'  File "'
_BOX_END = "╰─".encode()
"""The last line of a traceback that rich draws in a box; the exception follows it."""
_CHAINED = (b"During handling of the above exception", b"The above exception was the direct cause")
_NOT_THE_END = (b"Exception ignored in", b"Exception in thread", b"Original Traceback", b"--- Logging error")
"""Before or in the head of a traceback after which the program goes on (Lib/traceback.py, threading.py, logging)."""
_RAISED = re.compile(rb"(?:[A-Za-z_]\w{0,99}\.){0,20}[A-Z]\w{0,99}(?::(?: .*)?)?$")
_USUAL = re.compile(rb"[\w.]{0,400}(?:Error|Exception|Interrupt|Exit|Timeout|Warning|Group)(?::|$)")

_MAX_OPEN = 1024
_MAX_BETWEEN = 500
"""Most lines of others between two lines of one traceback."""
_MAX_KINDS = 8
_GOES_ON = 50
"""Lines of the program after a traceback that say it was caught; the other ranks of one that ended print some too."""
_MAX_TEXT = 300


class _Open(msgspec.Struct):
    """A traceback whose exception did not come yet."""

    last: int
    follows_frame: bool = True


class _Raised(msgspec.Struct):
    """An exception at the end of a traceback: its first and last line, how often, how many lines of programs follow."""

    line: int
    count: int
    last: int = 0
    after: int = 0


class Tracebacks:
    """Takes the lines of programs; what a launcher puts before a line says of which rank it is."""

    def __init__(self) -> None:
        self._waiting = 0
        self._before = b""
        self._open: dict[bytes, _Open] = {}
        self._raised: dict[str, _Raised] = {}
        self._last: dict[bytes, str] = {}
        self._destroyed = 0

    def destroyed(self, number: int) -> None:
        """Take note of a line by which NCCL says that a communicator was taken down in good order."""
        self._destroyed = number

    def take(self, line: bytes, number: int) -> None:
        """Take a line that is not NCCL's own."""
        before, self._before = self._before, line[:_MAX_TEXT]
        if _HEAD in line:
            harmless = any(words in text for words in _NOT_THE_END for text in (before, line))
            self._waiting = 0 if harmless else number
            return
        if self._waiting and self._frame(line, number):
            return
        if self._open:
            self._in_traceback(line, number)
        elif self._last and any(words in line for words in _CHAINED):
            self._chained(line)
        elif self._last and line.strip():
            self._goes_on(line)

    def _goes_on(self, line: bytes) -> None:
        key = max((k for k in self._last if line.startswith(k)), key=len, default=None)
        raised = None if key is None else self._raised.get(self._last[key])
        if raised is not None:
            raised.after += 1

    def _frame(self, line: bytes, number: int) -> bool:
        """Begin a traceback with its first frame, the line that shows what stands before each line of this rank."""
        at = line.find(_FRAME)
        at = at if at >= 0 else line.find(_BOX_END)
        if at < 0 or number - self._waiting > _MAX_BETWEEN:
            return False
        if line[:at] not in self._open:
            # Heads of several ranks may come before their frames, so the next frame may begin another one.
            if len(self._open) >= _MAX_OPEN:
                self._open = {k: o for k, o in self._open.items() if number - o.last <= _MAX_BETWEEN}
            if len(self._open) < _MAX_OPEN:
                self._open[line[:at]] = _Open(number)
            return True
        return False

    def _in_traceback(self, line: bytes, number: int) -> None:
        key = max((k for k in self._open if line.startswith(k)), key=len, default=None)
        if key is None:
            return
        found, rest = self._open[key], line[len(key) :]
        if number - found.last > _MAX_BETWEEN:
            del self._open[key]
            return
        if rest[:1] in (b" ", b"\t"):
            found.last, found.follows_frame = number, True
            return
        if _RAISED.match(rest) and (found.follows_frame or _USUAL.match(rest)):
            del self._open[key]
            self._end(key, rest.decode("utf-8", "replace").strip()[:_MAX_TEXT], number)
        found.follows_frame = False

    def _end(self, key: bytes, text: str, number: int) -> None:
        raised = self._raised.get(text)
        if raised is not None:
            raised.count += 1
            raised.last, raised.after = number, 0
        elif len(self._raised) < _MAX_OPEN:
            self._raised[text] = _Raised(number, 1, number)
        if key in self._last or len(self._last) < _MAX_OPEN:
            self._last[key] = text

    def _chained(self, line: bytes) -> None:
        """Forget an exception that was handled: the one that came of it follows."""
        key = max((k for k in self._last if line.startswith(k)), key=len, default=None)
        if key is None:
            return
        text = self._last.pop(key)
        raised = self._raised.get(text)
        if raised is not None:
            raised.count -= 1
            if not raised.count:
                del self._raised[text]

    def failures(
        self, explained: Callable[[str], bool], completed: Iterable[int], *, alone: bool
    ) -> tuple[list[LogFailure], int]:
        """Return a failure for each exception, in order of lines, and how many the job went on after.

        Args:
            explained: whether another failure of the log tells of an exception's text.
            completed: lines of the last finished init of each process: a traceback before all of them ended nothing.
            alone: nothing else in the log says that the job failed, so what follows a traceback tells whether it was
                caught: many lines of the program, or a communicator that is taken down in good order.
        """
        started = min(completed, default=0)
        out: list[LogFailure] = []
        went_on = 0
        for text, raised in self._raised.items():
            if explained(text):
                continue
            caught = alone and (raised.after >= _GOES_ON or raised.last < self._destroyed)
            if raised.last < started or caught:
                went_on += 1
            elif len(out) < _MAX_KINDS:
                out.append(_failure(text, raised))
        return out, went_on


def _failure(text: str, raised: _Raised) -> LogFailure:
    if text.startswith("KeyboardInterrupt"):
        cause = f"the program was ended by SIGINT ({text}, line {raised.line}): Ctrl-C, the launcher or the scheduler"
        next_ = "see who sent it: the launcher's lines before it, then the scheduler's log"
    else:
        cause = f"the program ended with {text}, line {raised.line}"
        next_ = "read the traceback above that line: its last frame is where the program failed"
    why = LogCause(id="traceback", cause=cause, next=next_)
    return LogFailure(
        code="program ended", count=raised.count, line=raised.line, text=text, causes=(why,), stated=False
    )
