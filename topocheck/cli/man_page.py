"""The man page, from the help of all commands: `python -m topocheck.cli.man_page > docs/man/topocheck.1`.

Requests and escapes are those of man(7) and groff_man_style(7), which mandoc reads as well.
"""

from __future__ import annotations

import sys

from topocheck.cli.command_tree import Command, Parameter, commands
from topocheck.model.exit_codes import MEANINGS
from topocheck.model.version import __version__

_ABOUT = """\
.B topocheck
shows how the GPUs, NICs and CPUs of a node are connected, names the links that are slower than they should be, checks a
node before a job, and measures. It needs no root and changes nothing on the machine. What it prints for programs is
stable:
.B \\-\\-format json
(short:
.BR \\-\\-json )
has a schema.
"""
_FILES = """\
.TP
.I /etc/topocheck/policy.toml
What the site expects of a node, unless
.B \\-\\-policy
or
.B TOPOCHECK_POLICY
names another file.
"""
_ENVIRONMENT = """\
.TP
.B TOPOCHECK_POLICY
The policy file.
.TP
.BR TOPOCHECK_SECRET ", " TOPOCHECK_SECRET_FILE
A secret that all ranks of a job have, by which they know each other.
.TP
.B TOPOCHECK_NODE
Name of the node that a rank runs on, where containers share a host name.
.TP
.B NO_COLOR
No colour on a terminal.
"""
_EXAMPLES = """\
.TP
.B topocheck report
This node on a screen and a half.
.TP
.B topocheck check && srun ./train
Start a job only on a node without a failed check.
.TP
.B topocheck snapshot save node.snap
Record the machine; every command reads such a file with
.BR \\-\\-from .
"""


def man_page() -> str:
    """Return topocheck(1) as roff."""
    parts = [
        f'.TH TOPOCHECK 1 "" "topocheck {_text(__version__)}" "User Commands"\n',
        ".SH NAME\ntopocheck \\- find out why GPU, NVLink, PCIe and RDMA links are slower than they should be\n",
        ".SH SYNOPSIS\n.B topocheck\n.I COMMAND\n[\\fIOPTION\\fR]...\n",
        f".SH DESCRIPTION\n{_ABOUT}",
        ".SH COMMANDS\n",
        *(_command(c) for c in commands()),
        ".SH EXIT STATUS\n",
        *(f".TP\n.B {code}\n{_text(text)}\n" for code, text in MEANINGS.items()),
        f".SH ENVIRONMENT\n{_ENVIRONMENT}",
        f".SH FILES\n{_FILES}",
        f".SH EXAMPLES\n{_EXAMPLES}",
        ".SH SEE ALSO\n.BR lspci (8),\n.BR lstopo (1),\n.BR nvidia\\-smi (1),\n.BR numactl (8)\n",
    ]
    return "".join(parts)


def _command(command: Command) -> str:
    words = f"{command.name} {command.usage}".strip()
    body = ".PP\n".join(map(_paragraph, command.text.split("\n\n")))
    options = "".join(_parameter(p) for p in command.parameters)
    return f'.SS "topocheck {_quoted(words)}"\n{body}{options}'


def _paragraph(text: str) -> str:
    """Return a paragraph; one that begins with a backspace keeps its lines, as in the help (click's convention)."""
    if text.startswith("\b"):
        return ".nf\n" + "".join(f"{_text(line)}\n" for line in text.splitlines()[1:]) + ".fi\n"
    return f"{_text(' '.join(text.split()))}\n"


def _parameter(parameter: Parameter) -> str:
    return f".TP\n.B {_text(parameter.names)}\n{_text(parameter.text)}\n"


def _text(text: str) -> str:
    """Return text for a line: backslashes and hyphens are roff's, and a dot or quote at its start is a request."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("\u00d7", "\\(mu").replace("\u2013", "\\(en")
    return "\\&" + text if text[:1] in (".", "'") else text


def _quoted(text: str) -> str:
    return _text(text).replace('"', "\\(dq")


if __name__ == "__main__":
    sys.stdout.write(man_page())
