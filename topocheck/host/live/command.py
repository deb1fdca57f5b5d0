"""Running a program as an answer to a question."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from topocheck.host.base import HostError
from topocheck.model.base import Reason
from topocheck.process.command import OutputTooLargeError, run
from topocheck.process.programs import find_program
from topocheck.process.python import child_environment

OUTPUT_LIMIT = 8 << 20


def run_command(argv: Sequence[str], timeout_s: float) -> dict[str, Any]:
    """Run `argv` under the C locale and return its `rc`, `stdout` and `stderr`; see `topocheck.process.command`.

    Raises:
        HostError: no such program, it may not be run, it took too long, or it wrote too much.
        OSError: it could not be started for another reason.
    """
    program = find_program(argv[0]) if argv else None
    if program is None:
        raise HostError(Reason.ABSENT, f"{argv[0] if argv else 'an empty command'}: no such program")
    env = {k: v for k, v in os.environ.items() if k != "LANGUAGE" and not k.startswith("LC_")}
    env |= {"LC_ALL": "C", "LANG": "C"}
    try:
        done = run([program, *argv[1:]], child_environment(env), timeout_s, OUTPUT_LIMIT)
    except TimeoutError:
        raise HostError(Reason.TIMED_OUT, f"{argv[0]} was not done within {timeout_s:.3g} s") from None
    except OutputTooLargeError:
        raise HostError(Reason.UNSUPPORTED, f"{argv[0]} wrote more than {OUTPUT_LIMIT >> 20} MiB") from None
    return done._asdict()
