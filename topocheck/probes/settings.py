"""NCCL's settings, in its own order of precedence, and the neighbours that change what it sees."""

from __future__ import annotations

import re

from topocheck.host.base import Host, HostError
from topocheck.model.base import Reason
from topocheck.model.system import Setting, SettingFacts

SYSTEM_CONF = "/etc/nccl.conf"

# The form of a line that NCCL reads (its src/misc/param.cc): NAME=VALUE from the first column, `#` a comment.
_LINE = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_NUMBERED = re.compile(r"(\d+)\t(.*)", re.DOTALL)


def parse_conf_line(line: str) -> tuple[str, str] | None:
    """Return (name, value) of one line of an NCCL settings file, or None for a comment or anything else."""
    m = _LINE.fullmatch(line.rstrip("\r\n"))
    return (m[1], m[2].strip()) if m and not line.lstrip().startswith("#") else None


def parse_conf(path: str, numbered: list[str]) -> list[Setting]:
    """Return the NCCL settings of a file whose lines come as `number<TAB>text`, in order, all of them in force."""
    out = []
    for entry in numbered:
        m = _NUMBERED.fullmatch(entry)
        pair = parse_conf_line(m[2]) if m else None
        if m and pair and pair[0].startswith("NCCL_"):
            out.append(Setting(name=pair[0], value=pair[1], source=f"{path}:{int(m[1])}"))
    return out


def in_force(settings: list[Setting]) -> tuple[Setting, ...]:
    """Mark which of the settings, given in order of precedence, wins: the first of its name.

    An empty value counts as unset (NCCL's env readers treat it so), and neither wins nor shadows.
    """
    taken: set[str] = set()
    out = []
    for s in settings:
        wins = s.value != "" and s.name not in taken
        if wins:
            taken.add(s.name)
        out.append(Setting(name=s.name, value=s.value, source=s.source, in_force=wins))
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


def read(host: Host) -> SettingFacts:
    """Read the process environment, the user's file and /etc/nccl.conf, in that order; the first to set a name wins.

    Both files are always tried, as NCCL does since 2.23.
    """
    raw: dict[str, str] = {}
    try:
        environment = host.environ()
    except HostError as e:
        environment = {}
        raw["environment"] = f"!{e}"
    settings = [
        Setting(name=k, value=v, source="environment") for k, v in sorted(environment.items()) if k.startswith("NCCL_")
    ]
    conf_files: dict[str, str] = {}
    for path in dict.fromkeys(p for p in (_user_conf(host, environment), SYSTEM_CONF) if p):
        try:
            found = parse_conf(path, host.conf_lines(path))
        except HostError as e:
            conf_files[path] = str(e.reason) if e.reason in (Reason.ABSENT, Reason.DENIED) else f"not read: {e}"
            continue
        conf_files[path] = "read"
        settings += found
    neighbours = tuple(
        Setting(name=k, value=v, source="environment")
        for k, v in sorted(environment.items())
        if not k.startswith("NCCL_")
    )
    for s in settings:
        raw[s.source if s.source != "environment" else f"environment {s.name}"] = f"{s.name}={s.value}"
    return SettingFacts(raw=raw, nccl=in_force(settings), neighbours=neighbours, conf_files=conf_files)
