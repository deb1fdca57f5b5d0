"""A host for tests of one probe: answers given by question, files taken from a folder where one is given."""

from collections.abc import Mapping
from pathlib import Path

from topocheck.host.base import Answer, Host, RecordedBackend, key
from topocheck.host.live.backend import LiveBackend


class Answers:
    """Answers from a mapping, as a recording does; what it lacks is read below `root`, a captured tree."""

    def __init__(self, answers: Mapping[str, Answer], root: Path | None = None) -> None:
        self.answers = answers
        self.recorded = RecordedBackend(answers)
        self.files = LiveBackend(str(root)) if root else None
        self.asked: list[str] = []

    def ask(self, kind: str, *args: str | int) -> Answer:
        k = key(kind, args)
        self.asked.append(k)
        if self.files is None or k in self.answers:
            return self.recorded.ask(kind, *args)
        return self.files.ask(kind, *args)


def host_of(answers: Mapping[str, Answer], root: Path | None = None) -> Host:
    """Return a host with these answers."""
    return Host(Answers(answers, root), "test")


def put(root: Path, files: Mapping[str, str]) -> None:
    """Write files below `root`; a value that starts with `->` makes a symbolic link."""
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("->"):
            path.symlink_to(text[2:])
        else:
            path.write_text(text)
