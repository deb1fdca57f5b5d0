"""Small helpers of the sysfs probes: one question, its raw answer kept, its value or the reason for none."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from typing import TypeVar

from topocheck.host.base import Host, HostError
from topocheck.model.base import Missing, Reason, is_digits, unparsable

T = TypeVar("T")

NOT_ASKED = Missing(Reason.NOT_RECORDED, "not asked of this class of device")


class Folder:
    """Files of one folder; each answer is kept in `raw` under the file's name, so that a fact can quote it.

    Where `raw` is given, it is a fact's of other sources too, and names are kept with the whole path.
    """

    def __init__(self, host: Host, path: str, raw: dict[str, str] | None = None) -> None:
        self.host = host
        self.path = path
        self.raw: dict[str, str] = {} if raw is None else raw
        self._prefix = "" if raw is None else f"{path}/"

    def _keep(self, name: str, error: HostError) -> Missing:
        self.raw[self._prefix + name] = f"!{error.missing()}"
        return error.missing()

    def text(self, name: str) -> str | Missing:
        """Return the stripped text of a file, or why there is none."""
        try:
            value = self.host.read_text(f"{self.path}/{name}").strip("\0 \t\r\n")
        except HostError as e:
            return self._keep(name, e)
        self.raw[self._prefix + name] = value
        return value

    def value(self, name: str, parse: Callable[[str], T | Missing]) -> T | Missing:
        """Return a file through its parser."""
        answer = self.text(name)
        return answer if isinstance(answer, Missing) else parse(answer)

    def link(self, name: str) -> str | Missing:
        """Return the last element of what a symbolic link points to (`nvidia` of `../../bus/pci/drivers/nvidia`)."""
        try:
            target = posixpath.basename(self.host.readlink(f"{self.path}/{name}").rstrip("/"))
        except HostError as e:
            return self._keep(name, e)
        self.raw[self._prefix + name] = target
        return target


def parse_int(text: str) -> int | Missing:
    """Return a decimal whole number within MOST, or Missing(unparsable)."""
    number = int(text) if is_digits(text.strip().removeprefix("-"), 16) else MOST + 1
    return number if abs(number) <= MOST else unparsable(text)


MOST = (1 << 53) - 1
"""The whole numbers that every reader of JSON holds (RFC 8259, section 6); as kB they are bytes within 63 bits."""


def list_or_missing(host: Host, path: str) -> list[str] | Missing:
    """Return the sorted names in a folder, or why there are none."""
    try:
        return host.listdir(path)
    except HostError as e:
        return e.missing()


def text_or_missing(host: Host, path: str, limit: int = 1 << 20) -> str | Missing:
    """Return the stripped text of a file, or why there is none."""
    try:
        return host.read_text(path, limit).strip("\0 \t\r\n")
    except HostError as e:
        return e.missing()
