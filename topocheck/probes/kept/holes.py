"""What stands in the holes of the questions of probes, and where the names in them are learned (see table.py)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from topocheck.host.base import Answer
from topocheck.host.recording.anonymize import Hole
from topocheck.host.recording.forms import VERSION
from topocheck.host.recording.redaction import Redaction
from topocheck.model.hostlist import expand_hostlist
from topocheck.probes.kept.forms import slot, topology_file
from topocheck.probes.system import LOGIND


def drop_in(r: Redaction, text: str) -> str:
    """Return what the name of a configuration file becomes: a number in their order, which decides what counts."""
    if not text.endswith(".conf"):
        return r.map.name("name", text)
    return r.ordered.setdefault(text, f"{len(r.ordered):04}.conf")


def shared_memory(r: Redaction, text: str) -> str:
    """Return what a file of NCCL in shared memory becomes: six random characters stay."""
    if re.fullmatch("nccl-[A-Za-z0-9]{6}", text, re.ASCII):
        return text
    return f"nccl-{r.map.name('name', text)}"


def learn(r: Redaction, answers: Mapping[str, Answer]) -> None:
    """Take note of the names of hosts, users, devices and files from where those are expected."""
    for text in _texts(answers.get("read:/proc/sys/kernel/hostname")):
        r.host(text)
    for name, value in _settings(answers):
        if name.endswith("NODELIST"):
            for host in expand_hostlist(value):
                r.host(host)
        elif name in ("SLURMD_NODENAME", "MASTER_ADDR"):
            r.host(value)
        elif name.endswith(("_IFNAME", "_HCA", "NET_DEVICES", "_if_include", "_if_exclude")):
            r.devices.update(w for w in re.split(r"[^\w.\-]+", value) if w and r.begins_known(w))
        elif name in ("NCCL_TOPO_FILE", "NCCL_GRAPH_FILE"):
            r.files.add(value)
    process = answers.get("process:")
    home = str(process.get("home", "")) if isinstance(process, dict) else ""
    if home.count("/") > 1 and len(last := home.rstrip("/").rpartition("/")[2]) > 1:
        r.user(last)
    for folder in ("/sys/class/net", "/sys/class/infiniband"):
        r.interfaces.update(_texts(answers.get(f"list:{folder}")))
    r.devices.update(n for n in r.interfaces if r.device_is_public(n))
    drop_ins = {n for f in LOGIND for n in _texts(answers.get(f"list:{f}")) if n.endswith(".conf")}
    r.ordered.update({n: f"{i:04}.conf" for i, n in enumerate(sorted(drop_ins))})


def _texts(answer: Answer) -> list[str]:
    if isinstance(answer, bytes):
        answer = answer.decode("utf-8", "replace")
    texts = answer if isinstance(answer, list) else [answer]
    return [t.strip() for t in texts if isinstance(t, str) and t.strip()]


def _settings(answers: Mapping[str, Answer]) -> Iterator[tuple[str, str]]:
    """Yield name and value of every variable and of every line of NCCL's files."""
    environ = answers.get("environ:")
    if isinstance(environ, dict):
        yield from ((str(k), str(v)) for k, v in environ.items())
    for question, answer in answers.items():
        for text in _texts(answer) if question.startswith("conf:") else ():
            if m := re.match(r"[0-9]*\s*(\w+)\s*=(.*?)\s*$", text, re.DOTALL):
                yield m[1], m[2]


HOLES: dict[str, Hole] = {
    "pci": (r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F]", lambda r, t: t),
    "n": ("[0-9]{1,9}", lambda r, t: t),
    "numbers": (r"(?:\|[0-9:,]+)*", lambda r, t: t),
    "ids": (r"(?:[0-9a-f]{4}:[0-9a-f]{4}\|?)*", lambda r, t: t),
    "verbs": ("uverbs[0-9]{1,4}", lambda r, t: t),
    "nvidia-file": (r"nvidia(?:[0-9]{1,3}|ctl|-uvm)", lambda r, t: t),
    "net": (r"[^/|]+", Redaction.device),
    "rdma": (r"[^/|]+", Redaction.device),
    "slot": (r"[^/|]+", slot),
    "cgroup": (r"(?:/.*?)?", Redaction.cgroup),
    "release": (r"[^/|]+", lambda r, t: VERSION(r, t)),
    "drop-in": (r"[^/|]+", drop_in),
    "shm": (r"nccl-[^/]*", shared_memory),
    "packages": (r"/.*?/(?:site|dist)-packages", Redaction.path),
    "file": (r".*?", Redaction.path),
    "topology": (r"/.*", topology_file),
}
"""Name in braces -> (what may stand there, what it becomes)."""
