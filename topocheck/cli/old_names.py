"""Commands and options that version 0.1.0 had and that are called otherwise now; understood until 1.0.

The command line is rewritten before anything reads it, so that no command knows its old names.
"""

from __future__ import annotations

OPTIONS = {
    "bw": {"--worst-node": "--far-numa"},
    "network bw": {"--way": "--transport"},
    "scale": {"--gradient": "--gradients"},
}
"""Command -> its old option -> the option."""
VALUES = {("report", "--section", "record"): "system-summary"}
"""(command, option, old value) -> the value."""
COMMANDS = {("bw", "--pairs", "nodes"): ("network", "bw")}
"""(command, option, value) that were a command of their own -> that command."""


def current(argv: list[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Return a command line in today's names, and (old, new) of each old name in it.

    What stands behind `--` is left as it is.
    """
    command, words, found = argv[0] if argv else "", argv[1:], list[tuple[str, str]]()
    for (name, option, value), new in COMMANDS.items():
        at = _of(words, option, value) if name == command else None
        if at is not None:
            words[at : at + (1 if "=" in words[at] else 2)] = []
            found.append((f"{name} {option} {value}", " ".join(new)))
            command = " ".join(new)
    for (name, option, value), now in VALUES.items():
        while name == command and (at := _of(words, option, value)) is not None:
            words[at : at + (1 if "=" in words[at] else 2)] = [option, now]
            found.append((f"{option} {value}", f"{option} {now}"))
    options = OPTIONS.get(command, {})
    end = words.index("--") if "--" in words else len(words)
    for i, word in enumerate(words[:end]):
        old, equals, value = word.partition("=")
        if old in options:
            words[i] = f"{options[old]}{equals}{value}"
            found.append((old, options[old]))
    return [*command.split(" "), *words] if argv else [], list(dict.fromkeys(found))


def spelled_out(argv: list[str]) -> list[str]:
    """Return a command line with `--json` as `--format=json`, which every command that has formats takes."""
    end = argv.index("--") if "--" in argv else len(argv)
    return ["--format=json" if a == "--json" and i < end else a for i, a in enumerate(argv)]


def _of(words: list[str], option: str, value: str) -> int | None:
    """Return where an option with a value stands, as one word or two; None where it does not."""
    for i, word in enumerate(words):
        if word == "--":
            break
        if word == f"{option}={value}" or (word == option and words[i + 1 : i + 2] == [value]):
            return i
    return None
