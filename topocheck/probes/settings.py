"""NCCL's settings, in its own order of precedence, and the neighbours that change what it sees.

NCCL (src/misc/param.cc) copies each `NAME=VALUE` line of its files into the process environment unless the name is
there already. So the first to set a name wins: the process environment, then the user's file, then the system's,
and in a file the upper line. A name that is there with an empty value wins too, and NCCL then uses its default.

The topology file is read too, since its values win over the machine's (src/graph/topo.cc, ncclTopoGetSystem): the
one of NCCL_TOPO_FILE, and where that is not set at all, the default file that providers place in guests.
"""

from __future__ import annotations

import re

from topocheck.host.base import Host, HostError
from topocheck.model.base import ABSENT, Missing, Reason
from topocheck.model.system import Setting, SettingFacts

SYSTEM_CONF = "/etc/nccl.conf"
DEFAULT_TOPO_FILE = "/var/run/nvidia-topologyd/virtualTopology.xml"
MAX_TOPO_BYTES = 1 << 20
"""The largest topology file that is kept; those of public clouds have some 10 KB."""

_NUMBERED = r"(?as)(\d{1,9})\t(.*)"
_NAME = r"\s*(NCCL_[A-Za-z0-9_]+)\s*"
# Allowed to be looked at (host/live/filters.py) for other reasons than NCCL.
_NOT_RELATED = frozenset({"LANG", "LC_ALL", "NO_COLOR", "container", "KUBERNETES_SERVICE_HOST"})


def parse_conf(path: str, numbered: list[str]) -> tuple[list[Setting], list[str]]:
    """Return the NCCL settings of a file whose lines come as `number<TAB>text`, and what is wrong with its lines.

    The name is all that stands before `=`, blanks included, and the value all that follows: a name with a blank
    beside it is one that NCCL never asks for. Such a setting is returned as not in force.
    """
    settings, notes = [], []
    for entry in numbered:
        m = re.fullmatch(_NUMBERED, entry)
        if not m or m[2].startswith("#"):
            continue
        left, equals, value = m[2].rstrip("\n").partition("=")
        name = re.fullmatch(_NAME, left)
        if not equals or not name:
            continue
        exact = name[1] == left
        if not exact:
            notes.append(f"line {int(m[1])}: NCCL does not see {name[1]}, because of the space next to its name")
        if value.endswith("\r"):
            notes.append(f"line {int(m[1])}: ends in a carriage return, which NCCL reads as part of the value")
        settings.append(Setting(name=name[1], value=value.rstrip("\r"), source=f"{path}:{int(m[1])}", in_force=exact))
    return settings, notes


def in_force(settings: list[Setting]) -> tuple[Setting, ...]:
    """Mark which of the settings, given in order of precedence, is in force: the first of its name.

    Where that one is empty, none is: NCCL takes an empty value for unset, but the later ones stay shadowed.
    """
    taken: set[str] = set()
    out = []
    for s in settings:
        first = s.in_force and s.name not in taken
        if first:
            taken.add(s.name)
        out.append(Setting(name=s.name, value=s.value, source=s.source, in_force=first and s.value != ""))
    return tuple(out)


def _user_conf(host: Host, environment: dict[str, str]) -> str | None:
    """Return the path of the user's file: NCCL_CONF_FILE as it stands (no tilde expansion), else ~/.nccl.conf."""
    if environment.get("NCCL_CONF_FILE"):
        return environment["NCCL_CONF_FILE"]
    try:
        home = str(host.process().get("home") or "")
    except HostError:
        return None
    return f"{home.rstrip('/')}/.nccl.conf" if home else None


_RELATIVE = Missing(Reason.NOT_VISIBLE_HERE, "not absolute: NCCL looks in the working folder of the job")


def _read_conf(host: Host, path: str) -> tuple[list[Setting], tuple[str, ...] | Missing]:
    """Return the settings of a file, and what NCCL misreads in it or why it was not read."""
    if not path.startswith("/"):
        return [], _RELATIVE
    try:
        settings, notes = parse_conf(path, host.conf_lines(path))
    except HostError as e:
        return [], e.missing()
    return settings, tuple(notes[:8])


def _read_topo(host: Host, settings: tuple[Setting, ...]) -> tuple[str, str | Missing]:
    """Return the path of the topology file that NCCL opens, empty for none, and its text."""
    set_ = next((s for s in settings if s.name == "NCCL_TOPO_FILE" and s.in_force), None)
    path = DEFAULT_TOPO_FILE if set_ is None else set_.value
    if set_ is None and any(s.name == "NCCL_TOPO_FILE" and s.value == "" for s in settings):
        # NCCL tries to open the empty name, in vain, and does not look at the default file either.
        return "", ABSENT
    text = _text_of(host, path)
    absent_default = set_ is None and isinstance(text, Missing) and text.reason is Reason.ABSENT
    return ("" if absent_default else path), text


def _text_of(host: Host, path: str) -> str | Missing:
    if not path.startswith("/"):
        return _RELATIVE
    try:
        data = host.read_bytes(path, MAX_TOPO_BYTES)
    except HostError as e:
        return e.missing()
    if len(data) >= MAX_TOPO_BYTES:
        return Missing(Reason.UNSUPPORTED, f"larger than {MAX_TOPO_BYTES >> 20} MiB: not kept")
    return data.decode("utf-8", "replace")


def _read_graph(host: Host, settings: tuple[Setting, ...]) -> str | Missing:
    path = next((s.value for s in settings if s.name == "NCCL_GRAPH_FILE" and s.in_force), "")
    if not path:
        return Missing(Reason.NOT_VISIBLE_HERE, "NCCL_GRAPH_FILE is not set")
    return _text_of(host, path)


def read(host: Host) -> SettingFacts:
    """Read the process environment, the user's file, /etc/nccl.conf and the topology file, in that order.

    Both files are always tried, as NCCL does (NCCL_CONF_FILE is known to it since 2.23.4).
    """
    raw: dict[str, str] = {}
    try:
        environment = host.environ()
    except HostError as e:
        environment = {}
        raw["environment"] = f"!{e}"
    variables = [Setting(name=k, value=v, source="environment") for k, v in sorted(environment.items())]
    settings = [s for s in variables if s.name.startswith("NCCL_")]
    conf_files: dict[str, tuple[str, ...] | Missing] = {}
    for path in dict.fromkeys(p for p in (_user_conf(host, environment), SYSTEM_CONF) if p):
        found, conf_files[path] = _read_conf(host, path)
        settings += found
    for s in settings:
        raw[f"environment {s.name}" if s.source == "environment" else s.source] = f"{s.name}={s.value}"
    related = tuple(s for s in variables if not s.name.startswith("NCCL_") and s.name not in _NOT_RELATED)
    # Last: the file may lie where a read hangs, and what was asked before is then kept.
    judged = in_force(settings)
    topo_path, topo = _read_topo(host, judged)
    return SettingFacts(
        raw=raw,
        nccl=judged,
        related=related,
        conf_files=conf_files,
        topo_file=topo,
        topo_file_path=topo_path,
        graph_file=_read_graph(host, judged),
    )
