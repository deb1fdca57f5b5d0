"""What a recording holds, as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from topocheck.host.base import Answer, HostError
from topocheck.render.quoting import one_line

if TYPE_CHECKING:
    from topocheck.host.recording.snapshot import Header

LINE_LIMIT = 200


def show_text(header: Header, answers: Mapping[str, Answer], grep: str | None) -> str:
    """Return the header and how many questions of each kind there are; with `grep`, the questions that contain it."""
    lines = [
        f"recorded   {header.taken_at} by topocheck {header.topocheck_version}, probe set {header.probe_set}",
        f"identifiers {header.identifiers}",
        f"answers    {len(answers)}",
    ]
    if grep is None:
        kinds = Counter(question.split(":", 1)[0] for question in answers)
        lines += [f"  {kind:<16} {n}" for kind, n in sorted(kinds.items())]
        lines.append("Show answers with --grep TEXT.")
    else:
        lines += [f"{q}: {answer_text(answers[q])}" for q in sorted(answers) if grep in q]
    return "".join(f"{one_line(line)}\n" for line in lines)


def answer_text(answer: Answer) -> str:
    """Return an answer in one line."""
    if isinstance(answer, HostError):
        return f"! {answer}"
    if isinstance(answer, bytes):
        try:
            text = answer.decode()
        except UnicodeDecodeError:
            text = answer[:64].hex(" ") + (f" ... ({len(answer)} bytes)" if len(answer) > 64 else "")
    else:
        text = str(answer)
    text = text.strip().replace("\n", " | ")
    return text if len(text) <= LINE_LIMIT else f"{text[:LINE_LIMIT]}..."
