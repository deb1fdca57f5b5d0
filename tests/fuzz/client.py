"""The other end of a server: starts one, gives it cases, and starts another where it died."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import msgspec

from tests.fuzz.case import Case, Outcome, Request
from tests.fuzz.server import receive, send

WALL_S = 10.0
ROOT = Path(__file__).parents[2]


class Server:
    """A process that runs cases. `hash_seed` orders its sets: two servers with two seeds order them differently."""

    def __init__(self, hash_seed: int = 1) -> None:
        self._hash_seed = hash_seed
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="topocheck-fuzz-")
        self._to: BinaryIO
        self._from: BinaryIO

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()
        self._folder.cleanup()

    def run(self, case: Case, wall_s: float = WALL_S) -> Outcome:
        """Return what comes of a case; one that is not done in time gets four times as long, for a busy machine."""
        outcome = self._ask(case, wall_s)
        if outcome.hung and outcome.cpu_s < wall_s / 2:
            again = self._ask(case, 4 * wall_s)
            if not again.hung and again.cpu_s < wall_s:
                return again
        return outcome

    def _ask(self, case: Case, wall_s: float) -> Outcome:
        if self._process is None:
            self._start()
        try:
            send(self._to, msgspec.msgpack.encode(Request(case=case, wall_s=wall_s)))
            return msgspec.msgpack.decode(receive(self._from), type=Outcome)
        except (EOFError, BrokenPipeError):
            self._end()
            raise RuntimeError(f"the server died; the case was: {case.shown()}") from None

    def _start(self) -> None:
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        argv = [sys.executable, "-P", "-m", "tests.fuzz.server", str(theirs_in), str(theirs_out), self._folder.name]
        env = {**os.environ, "PYTHONHASHSEED": str(self._hash_seed), "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(argv, env=env, pass_fds=(theirs_in, theirs_out), stdin=subprocess.DEVNULL)
        os.close(theirs_in)
        os.close(theirs_out)
        self._to, self._from = os.fdopen(ours_out, "wb"), os.fdopen(ours_in, "rb")

    def _end(self) -> None:
        if self._process is not None:
            self._to.close()
            self._from.close()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
