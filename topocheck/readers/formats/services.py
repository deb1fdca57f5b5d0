"""Text of `systemctl status` for the services of NVIDIA that topocheck asks systemd about."""

from __future__ import annotations

import re

from topocheck.probes.system import SERVICES, SHOW_TIMEOUT_S, SHOWN_UNITS
from topocheck.readers.base import Answers, Reader, numbered

_UNIT = rf"({'|'.join(SERVICES)})\.service"
_HEAD = re.compile(rf"[ \t]*(?:[●○×↻↺*x]\s+)?{_UNIT}(?: - .*)?\s*$")
_NONE = re.compile(rf"[ \t]*Unit {_UNIT} could not be found\.")
_LOADED = re.compile(r"\s+Loaded: (loaded|not-found|masked|error|bad-setting)\b")
_ACTIVE = re.compile(r"\s+Active: (active|reloading|inactive|failed|activating|deactivating)\b")


def recognise(text: str) -> bool:
    """Tell whether the first lines of one of the services, or that there is none, stand in the text."""
    head = rf"^(?:{_HEAD.pattern[:-1]}\n\s+Loaded: |{_NONE.pattern})"
    return re.search(head, text, re.M) is not None


def read(text: str) -> Answers:
    """Return the states as `systemctl show` prints them."""
    found = Answers()
    states: dict[str, dict[str, str]] = {}
    unit = ""
    first = 0
    for at, line in numbered(text):
        if m := _NONE.match(line):
            states.setdefault(m[1], {"LoadState": "not-found", "ActiveState": "inactive"})
            first = first or at
        elif m := _HEAD.match(line):
            unit = m[1] if m[1] not in states else ""
        elif unit and (m := _LOADED.match(line)):
            states.setdefault(unit, {})["LoadState"] = m[1]
            first = first or at
        elif unit and (m := _ACTIVE.match(line)):
            states.setdefault(unit, {})["ActiveState"] = m[1]
            unit = ""
    blocks = [
        f"Id={name}.service\nLoadState={of.get('LoadState', 'loaded')}\nActiveState={of['ActiveState']}\n"
        for name, of in states.items()
        if "ActiveState" in of
    ]
    if blocks:
        answer = {"rc": 0, "stdout": "\n".join(blocks), "stderr": ""}
        found.put(first, answer, "run", SHOW_TIMEOUT_S, *SHOWN_UNITS)
    return found


READER = Reader(name="systemctl status", tells="whether fabric manager and IMEX run", recognise=recognise, read=read)
