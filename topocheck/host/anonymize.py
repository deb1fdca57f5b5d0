"""Replacing what identifies a machine, its network and its users in a recording, while relations stay.

Replaced in every question and answer: serial numbers, UUIDs, GUIDs, GIDs, MACs, IP addresses, host and user names,
boot and machine ids, container ids, and the serial number in config spaces. Forms that mean only one thing (a UUID,
a MAC) are replaced wherever they stand. Forms that could also be something else (`12.4.5.8` is an address or a
version, a host may be called `nvidia`) are replaced where such a thing is expected, and elsewhere only if it is one
that was met there.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from topocheck.host.base import Answer, HostError
from topocheck.host.hostlist import expand_hostlist
from topocheck.host.identifiers import GUID, IPV4, NO_NAMES, Identifiers, number, user_name
from topocheck.host.mapping import Mapping as Replacements

_ADDRESS_PATHS = ("/proc/net/", "/proc/self/net/", "/sys/class/net/", "/sys/class/infiniband/", "/etc/hosts")
_HOST_FILES = ("/proc/sys/kernel/hostname", "/etc/hostname", "/proc/sys/kernel/domainname")
_HOST_VARIABLES = ("SLURMD_NODENAME", "MASTER_ADDR", "NCCL_HOSTID")
_SERIAL_FILES = (
    *("serial", "serial_number", "product_serial", "board_serial", "chassis_serial"),
    *("board_asset_tag", "chassis_asset_tag"),
)
_ID_FILES = ("phys_switch_id", "phys_port_id")
_GUID_FILES = ("node_guid", "sys_image_guid")
_MAKER = re.compile(r"MT\d|Mellanox|ConnectX|Quantum")
"""How the node description of an adapter begins that nobody has changed (`MT4129 ConnectX7 Mellanox ...`)."""
_FIELD_WORD = re.compile(r"(?i)(gpu|nic|node|cpu|numa|port|eth|ib|mlx|net)[\d_]*")
_UUID_ANY_START = re.compile(r"(?<=GPU-|MIG-)[0-9a-fA-F]+(?:-[0-9a-fA-F]+)*(?=[/,\s]|$)")


def anonymize(answers: Mapping[str, Answer], secret: bytes | None = None) -> dict[str, Answer]:
    """Return the answers with identifiers replaced.

    Args:
        answers: of one recording.
        secret: key of the replacement; by default random and forgotten, so that nobody can undo it. With one key,
            the numbers and addresses of several recordings are replaced alike (names are numbered in each).
    """
    known = _Known(Replacements(secret or os.urandom(32)))
    for question in sorted(answers):
        known.learn(question, answers[question])
    replacer = _Replacer(known)
    return {replacer.question(q): replacer.answer(q, answers[q]) for q in sorted(answers)}


def _texts(value: Any) -> list[str]:
    """Return every text in an answer, stripped."""
    if isinstance(value, str):
        return [value.strip()]
    if isinstance(value, bytes):
        return [value.decode("utf-8", "replace").strip()]
    if isinstance(value, dict):
        return [t for v in value.values() for t in _texts(v)]
    return [t for v in value for t in _texts(v)] if isinstance(value, list) else []


def _split(question: str) -> tuple[str, str, str]:
    """Return the kind, the first argument, and the last part of that as a path."""
    kind, _, rest = question.partition(":")
    subject = rest.split("|")[0]
    return kind, subject, subject.rpartition("/")[2]


def _is_serial(question: str, leaf: str) -> bool:
    return question.startswith("nvml:DeviceGetSerial") or leaf in _SERIAL_FILES


def _addresses_expected(kind: str, subject: str) -> bool:
    return kind in ("environ", "conf", "psutil") or subject.startswith(_ADDRESS_PATHS)


class _Known:
    """What the answers say about names, serials and addresses, from where those are expected."""

    def __init__(self, replacements: Replacements) -> None:
        self.map = replacements
        self.words: dict[str, str] = {}
        self.hosts: dict[str, str] = {}
        self.users: dict[str, str] = {}
        self.addresses: set[str] = set()
        self.paths: set[str] = set()

    def learn(self, question: str, answer: Answer) -> None:
        """Take note of one answer."""
        kind, subject, leaf = _split(question)
        if subject.startswith(("/sys/", "/proc/", "/dev/")):
            self.paths.update(subject.split("/"))
        if isinstance(answer, HostError):
            return
        texts = _texts(answer)
        if _addresses_expected(kind, subject):
            self.addresses.update(m[0].partition("/")[0] for t in texts for m in re.finditer(IPV4, t))
        if _is_serial(question, leaf):
            for text in texts:
                self._word(text, self.map.serial(text))
        elif leaf in _ID_FILES:
            for text in texts:
                if re.fullmatch("[0-9a-fA-F]+", text):
                    self._word(text, self.map.hexadecimal(text))
        elif leaf in _GUID_FILES:
            for text in texts:
                if re.fullmatch(GUID, text):
                    new = f"{self.map.eui64(number(text)):016x}"
                    self._word(text.replace(":", ""), new)
                    self._word("0x" + text.replace(":", ""), "0x" + new)
        elif subject in _HOST_FILES:
            for text in texts:
                self.host(text)
        elif leaf == "node_desc":
            for text in texts:
                self.host(_described_host(text))
        elif kind == "environ" and isinstance(answer, dict):
            for name in sorted(answer):
                self._variable(name, str(answer[name]))
        elif kind == "conf":
            for text in texts:
                self._variable(*_setting(text)[1:])
        elif kind == "process" and isinstance(answer, dict):
            self._home(str(answer.get("home", "")))

    def _word(self, text: str, new: str) -> None:
        if len(text) >= 5 and text.lower() not in NO_NAMES:
            self.words[text] = new

    def _variable(self, name: str, value: str) -> None:
        if name.endswith("NODELIST"):
            for host in expand_hostlist(value):
                self.host(host)
        elif name in _HOST_VARIABLES:
            self.host(value)
        elif name == "NCCL_COMM_ID":
            self.host(value.rpartition(":")[0])

    def host(self, text: str) -> str | None:
        """Return what a host's name becomes; None where `text` is an address or no name."""
        short, dot, domain = text.partition(".")
        if not re.fullmatch(r"[\w\-]+(\.[\w\-]+)*\.?", text) or short.lower() in NO_NAMES or _is_address(text):
            return None
        new = self.map.name("node", short)
        self.hosts[short] = new
        if dot:
            self.hosts[text] = f"{new}.{self.map.name('domain', domain)}"
        return self.hosts[text]

    def _home(self, home: str) -> None:
        name = home.rstrip("/").rpartition("/")[2]
        if len(name) >= 3 and home.count("/") > 1:
            self.users[name] = user_name(self.map, name)

    def telling_hosts(self) -> dict[str, str]:
        """Return the hosts whose names can only be names of hosts, and so may be replaced anywhere."""
        return {
            h: new
            for h, new in self.hosts.items()
            if len(h) >= 4 and re.search(r"[\d.\-]", h) and h not in self.paths and not _FIELD_WORD.fullmatch(h)
        }


def _described_host(text: str) -> str:
    """Return the host's name in a node description, by custom `HOST DEVICE`; empty where it has none."""
    first, blank, _ = text.partition(" ")
    return first if blank and not _MAKER.match(first) else ""


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _setting(text: str) -> tuple[str, str, str]:
    """Split a line `number<TAB>NAME=VALUE` into what is before the name, the name, and the value with its `=`."""
    m = re.match(r"(\d*\s*)(\w+)\s*=\s*(.*)", text, re.DOTALL)
    return (text[: m.start(2)], m[2], m[3]) if m else ("", "", text)


class _Replacer:
    """Replaces in questions and answers what is known by now."""

    def __init__(self, known: _Known) -> None:
        self._map = known.map
        self._known = known
        users = {u: new for u, new in known.users.items() if u not in known.paths}
        self._identifiers = Identifiers(known.map, known.words | known.telling_hosts(), users, known.addresses)

    def question(self, question: str) -> str:
        """Return a question with identifiers replaced, so that the same probe asks it again."""
        kind, _, rest = question.partition(":")
        return f"{kind}:{self._identifiers.replace(rest)}"

    def answer(self, question: str, answer: Answer) -> Answer:
        """Return an answer with identifiers replaced."""
        kind, subject, leaf = _split(question)
        replace = self._identifiers.replace
        if isinstance(answer, HostError):
            return HostError(answer.reason, replace(answer.detail))
        if isinstance(answer, bytes) and leaf == "config":
            return self._config_space(answer)
        if kind == "environ" and isinstance(answer, dict):
            return {k: self._variable(k, str(v)) for k, v in answer.items()}
        if kind == "conf":
            return _each(answer, self._conf_line)
        if subject in _HOST_FILES:
            return _each(answer, self._host_text)
        if leaf == "node_desc":
            return _each(answer, self._description)
        if leaf in _ID_FILES:
            return _each(answer, lambda t: t.replace(t.strip(), self._known.words.get(t.strip(), t.strip())))
        if _is_serial(question, leaf):
            return _each(answer, lambda t: t if t.strip().lower() in NO_NAMES else self._map.serial(t))
        expected = _addresses_expected(kind, subject)
        return _each(answer, lambda t: replace(t, expected))

    def _variable(self, name: str, value: str) -> str:
        hosts, replace = self._known.hosts, self._identifiers.replace
        if name.endswith("NODELIST"):
            return ",".join(hosts.get(h, h) for h in expand_hostlist(value))
        if name in _HOST_VARIABLES:
            return hosts.get(value) or replace(value, True)
        if name == "NCCL_COMM_ID":
            host, colon, port = value.rpartition(":")
            return (hosts.get(host) or replace(host, True)) + colon + port
        if name.endswith("VISIBLE_DEVICES"):
            return _UUID_ANY_START.sub(lambda m: self._map.hexadecimal(m[0]), value)
        return replace(value, True)

    def _conf_line(self, line: str) -> str:
        _, name, value = _setting(line)
        if not name:
            return self._identifiers.replace(line, True)
        return line[: len(line) - len(value)] + self._variable(name, value) if value else line

    def _host_text(self, text: str) -> str:
        bare = text.strip()
        return text.replace(bare, self._known.hosts[bare]) if bare in self._known.hosts else text

    def _description(self, text: str) -> str:
        host = _described_host(text)
        return self._known.hosts.get(host, host) + self._identifiers.replace(text[len(host) :])

    def _config_space(self, data: bytes) -> bytes:
        """Replace the serial number capability (PCI Express Base 6.0, 7.9.3: id 3, the EUI-64 low bytes first)."""
        out = bytearray(data)
        at, seen = 0x100, set[int]()
        while 0x100 <= at <= len(data) - 12 and at not in seen:
            seen.add(at)
            head = int.from_bytes(data[at : at + 4], "little")
            if head & 0xFFFF == 3:
                serial = int.from_bytes(data[at + 4 : at + 12], "little")
                out[at + 4 : at + 12] = self._map.eui64(serial).to_bytes(8, "little")
            at = head >> 20 & 0xFFC
        return bytes(out)


def _each(value: Answer, change: Callable[[str], str]) -> Answer:
    """Return an answer with every text in it changed, names of a mapping included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, bytes):
        # One character per byte and back: whatever is not text goes through unchanged.
        return change(value.decode("latin-1")).encode("latin-1", "replace")
    if isinstance(value, list):
        return [_each(v, change) for v in value]
    if isinstance(value, dict):
        return {change(k): _each(v, change) for k, v in value.items()}
    return value
