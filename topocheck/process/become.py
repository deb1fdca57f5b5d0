"""A child of ours that becomes another program: `python -m topocheck.process.become PROGRAM ARGUMENT...`.

Started where nothing can be done between fork and exec, since the parent has threads: the lifeline is bound first.
"""

from __future__ import annotations

import os
import sys

from topocheck.process.lifeline import bind_myself, inherited


def main() -> None:
    """Bind the lifeline, which stays open, and become the program."""
    life = inherited()
    if life is not None:
        bind_myself(life)
    try:
        os.execvp(sys.argv[1], sys.argv[1:])
    except OSError as e:
        print(f"{sys.argv[1]}: {e.strerror}", file=sys.stderr)
        raise SystemExit(127) from None


if __name__ == "__main__":
    main()
