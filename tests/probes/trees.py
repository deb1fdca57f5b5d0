"""Small captured trees for the sysfs probes: real files below a temporary folder, asked through the live door."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from topocheck.host.base import Answer, Backend, Host, HostError, key
from topocheck.host.live.backend import LiveBackend


class Link(str):
    """Target of a symbolic link."""


def write_tree(root: Path, entries: Mapping[str, str | bytes | Link | None]) -> None:
    """Write files (text gets a final newline, as in sysfs), links, and folders (None) below `root`."""
    for path, content in entries.items():
        where = root / path.lstrip("/")
        where.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            where.mkdir(exist_ok=True)
        elif isinstance(content, Link):
            os.symlink(content, where)
        elif isinstance(content, bytes):
            where.write_bytes(content)
        else:
            where.write_text(content + "\n", "utf-8")


class Overlay:
    """A backend that answers some questions itself (by their key), the rest through another; counts every question."""

    def __init__(self, inner: Backend, answers: Mapping[str, Answer | HostError] | None = None) -> None:
        self.inner = inner
        self.answers = dict(answers or {})
        self.asked: list[str] = []

    def ask(self, kind: str, *args: str | int) -> Answer:
        k = key(kind, args)
        self.asked.append(k)
        if k in self.answers:
            answer = self.answers[k]
            if isinstance(answer, HostError):
                raise answer
            return answer
        return self.inner.ask(kind, *args)


def host_of(
    root: Path,
    entries: Mapping[str, str | bytes | Link | None],
    answers: Mapping[str, Answer | HostError] | None = None,
) -> tuple[Host, Overlay]:
    """Return a host that shows `entries`, and its backend."""
    write_tree(root, entries)
    backend = Overlay(LiveBackend(str(root)), answers)
    return Host(backend), backend
