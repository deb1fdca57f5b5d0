"""Variables of a process: what `env` or `printenv` prints, or `declare -x` and `export` lines of a shell."""

from __future__ import annotations

import re

from topocheck.host.live.filters import variable_allowed
from topocheck.readers.base import Answers, Reader, numbered

MAX_VALUE = 1 << 14
_LINE = re.compile(r"^(?:declare -x |export )?([A-Za-z_][A-Za-z0-9_]{0,63})=(.*)$")
_TYPICAL = re.compile(
    r"^(?:declare -x |export )?(?:PATH|HOME|PWD|USER|SHELL|LD_LIBRARY_PATH|NCCL_\w+|CUDA_\w+|SLURM_\w+)=", re.M
)


def recognise(text: str) -> bool:
    """Tell whether lines of NAME=value are most of the text, and known names are among them."""
    lines = [line for line in text.split("\n") if line.strip()]
    matching = sum(_LINE.match(line) is not None for line in lines[:4096])
    return bool(lines) and 2 * matching > len(lines[:4096]) and _TYPICAL.search(text) is not None


def read(text: str) -> Answers:
    """Return the variables that topocheck may look at."""
    found = Answers()
    variables: dict[str, str] = {}
    first = 0
    for number, line in numbered(text, MAX_VALUE):
        if (m := _LINE.match(line)) and variable_allowed(m[1]) and len(m[2]) < MAX_VALUE and len(variables) < 1024:
            value = m[2]
            if line.startswith(("declare -x ", "export ")) and len(value) > 1 and value[0] == value[-1] == '"':
                value = value[1:-1]
            elif line.startswith("export "):  # a line of a script: a blank ends the word, and a comment may follow
                value = value.split(None, 1)[0] if value.strip() else ""
            variables.setdefault(m[1], value)
            first = first or number
    found.put(first or 1, variables, "environ")
    return found


READER = Reader(
    name="env", tells="settings of NCCL and its neighbours in the environment", recognise=recognise, read=read
)
