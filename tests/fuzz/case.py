"""A case: everything that one run of a command depends on, and what came of it."""

from __future__ import annotations

import hashlib
import itertools
import os
import shlex

import msgspec


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One run of topocheck.

    Attributes:
        argv: what follows `topocheck` on the command line.
        files: name below the working folder -> content; folders on the way are made.
        odd: name below the working folder -> `fifo`, `folder`, `loop` (a link to itself), `dangling` or `denied`.
        env: variables beside a fixed few (server.py).
        stdin: what standard input holds.
        call: `module:function` to run instead of the command line; it is given the case.
    """

    argv: tuple[bytes, ...] = ()
    files: dict[str, bytes] = {}
    odd: dict[str, str] = {}
    env: dict[str, bytes] = {}
    stdin: bytes = b""
    call: str = ""

    @property
    def words(self) -> tuple[str, ...]:
        """The command line as Python sees it."""
        return tuple(map(os.fsdecode, self.argv))

    def option(self, name: str, default: str = "") -> str:
        """Return the value of an option on the command line."""
        words = self.words
        return next((b for a, b in itertools.pairwise(words) if a == name), default)

    def shown(self) -> str:
        """Return the command line as a shell would take it, without anything that a terminal acts upon."""
        text = " ".join(
            [*(f"{k}={shlex.quote(os.fsdecode(v))}" for k, v in self.env.items()), self.call or "topocheck"]
            + [shlex.quote(w) for w in self.words]
        )
        return text.encode("unicode_escape").decode()

    def name(self) -> str:
        """Return a short name that follows from the content."""
        return hashlib.sha256(msgspec.msgpack.encode(self)).hexdigest()[:10]


def command(*words: str) -> tuple[bytes, ...]:
    """Return a command line as the `argv` of a case."""
    return tuple(map(os.fsencode, words))


class Outcome(msgspec.Struct, kw_only=True):
    """What came of a run.

    Attributes:
        code: exit code; None where it did not exit by itself.
        signal: number of the signal that ended it.
        error: `type at file:function` of the exception that left the command.
        trace: its traceback.
        out, err: standard output and standard error, cut at a limit.
        written: files that it wrote, with their content, cut at a limit.
        cpu_s, wall_s: time of the process and of the children it waited for.
        grown_bytes: most memory that was resident, beyond what the process began with.
        hung: it was ended because its time was up.
    """

    code: int | None = None
    signal: int = 0
    error: str = ""
    trace: str = ""
    out: bytes = b""
    err: bytes = b""
    written: dict[str, bytes] = {}
    cpu_s: float = 0.0
    wall_s: float = 0.0
    grown_bytes: int = 0
    hung: bool = False


class Request(msgspec.Struct, kw_only=True):
    """A case to run, and the wall time it is given."""

    case: Case
    wall_s: float


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something wrong with an outcome.

    Attributes:
        kind: one of oracles.KINDS.
        key: what makes two findings one: the place in the code, or the kind of character and the command.
        detail: what was seen.
    """

    kind: str
    key: str
    detail: str = ""


class Repro(msgspec.Struct, kw_only=True):
    """A finding as it is kept: the case that shows it."""

    about: str
    target: str
    seed: str
    finding: Finding
    case: Case
