"""The page of every check, from the registry: `python -m topocheck.cli.checks_page > docs/checks.md`."""

from __future__ import annotations

import sys
import textwrap
from itertools import groupby
from typing import TYPE_CHECKING

from topocheck.model.exit_codes import MEANINGS
from topocheck.render.formats import FORMATS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from topocheck.checks.registry import Check

_HEAD = """\
# Checks

<!-- Made by `python -m topocheck.cli.checks_page`; edit the docstrings of topocheck/checks/*.py instead. -->

`topocheck check` runs all of these. `--only` and `--skip` accept an id or an area (`pcie.*`); the policy turns them
on and off, and changes severities and thresholds ([policy.md](policy.md)). `topocheck explain ID` prints one of them.

A check of scope `node` judges hardware, driver and kernel. One of scope `process` judges the environment, limits,
affinity and visible devices of the process that runs topocheck; it does not apply in a prolog, a health check or a
timer, where that process is not the job.

A new check can begin in preview: what it judges may still change, so it is run only with `topocheck check --preview`,
or where the policy asks for it (`preview = true`). Those in preview are marked so below.

## States

| state | means |
| --- | --- |
| `ok` | judged, and nothing is wrong |
| `note` | worth knowing, nothing is wrong |
| `warn` | may cost performance, or will under some load |
| `fail` | worse than its own hardware, its siblings, or the policy |
| `unknown` | the facts it needs could not be read; never `ok` |
| `not_applicable` | this machine has nothing of the kind |

## Exit codes

| code | means |
| --- | --- |
%s

A failure outranks undetermined. Required are, unless the policy says otherwise, the PCI tree, and NVML where the NVIDIA
driver is loaded. A check is `unknown` if data it depends on could not be read (permission denied, timeout, not in the
snapshot); `probe.answers-lost` lists that data ([architecture.md](architecture.md), "Missing evidence").

"""


def checks_page(checks: Iterable[Check]) -> str:
    """Return the page as Markdown: states, exit codes, formats, and every check by id."""
    ordered = sorted(checks, key=lambda c: c.id)
    parts = [_HEAD % "\n".join(f"| {code} | {text} |" for code, text in MEANINGS.items()), _formats()]
    parts.append("## All checks\n\n| id | severity | scope | title |\n| --- | --- | --- | --- |\n")
    parts += [
        f"| [`{c.id}`](#{_anchor(c.id)}) | {c.severity.value} | {c.scope.value} | {c.listed} |\n" for c in ordered
    ]
    for area, members in groupby(ordered, key=lambda c: c.area):
        parts.append(f"\n## Area {area}\n")
        parts += [_check(c) for c in members]
    return "".join(parts)


def _formats() -> str:
    lines = [
        "## Formats\n\nExit codes that a format gives for healthy, failed, and could not be determined:\n\n",
        "| format | healthy | failed | unknown | convention |\n| --- | --- | --- | --- | --- |\n",
    ]
    for name, f in FORMATS.items():
        healthy, failed, unknown = f.codes or (0, 1, 3)
        told = f"{unknown} (1 with `--on-unknown fail`)" if f.prolog else str(unknown)
        lines.append(f"| `{name}` | {healthy} | {failed} | {told} | {f.text} |\n")
    lines.append(
        "\nWrong usage exits 2, but 3 with `nagios`. How each is put to work: [integrations.md](integrations.md).\n\n"
    )
    return "".join(lines)


def _check(check: Check) -> str:
    doc = textwrap.dedent("    " + check.doc)
    paragraphs = [" ".join(p.split()) for p in doc.split("\n\n")]
    if paragraphs[0].rstrip(".") == check.title:
        del paragraphs[0]
    body = "\n\n".join(_emphasised(p) for p in paragraphs if p)
    reads = ", ".join(f"`{r}`" for r in check.reads)
    facts = f"{check.title}. Severity {check.severity.value}, scope {check.scope.value}."
    if check.preview:
        facts += " In preview: run only with `--preview`, or where the policy asks for it."
    names = ", ".join(f"`{t}`" for t in check.thresholds)
    thresholds = f"\n\nThresholds of the policy: {names}" if names else ""
    return f"\n### {check.id}\n\n{facts}\n\n{body}\n\nReads: {reads}{thresholds}\n"


def _emphasised(paragraph: str) -> str:
    """Return a paragraph with its leading word (`Fix:`) in bold."""
    for word in ("Looks at", "Why it matters", "Fix", "Does not apply", "Thresholds"):
        if paragraph.startswith(word + ":"):
            return f"**{word}:**{paragraph[len(word) + 1 :]}"
    return paragraph


def _anchor(id_: str) -> str:
    """Return the anchor that Markdown renderers give a heading: lower case, without the dot."""
    return id_.lower().replace(".", "")


def main() -> None:
    """Print the page."""
    from topocheck.checks import all_checks

    sys.stdout.write(checks_page(all_checks()))


if __name__ == "__main__":
    main()
