"""Lines that say what follows them: prompts and banners with a command, names of files, rules between parts.

    $ nvidia-smi topo -m          [root@node1 ~]# lspci -vvv         === ibstat ===         ```
    *** /proc/cmdline             /usr/bin/lspci -nn                   /var/log/kern.log:

A command is known by its name: only those whose output is read, or that bring a file (`cat`). Other commands count at
a prompt that names a user and a host, since there a new output begins whatever it is.
"""

from __future__ import annotations

import re

COMMANDS = (
    "lspci|nvidia-smi|ibstat|ibstatus|ibv_devinfo|ibdev2netdev|rdma|ethtool|ip|numactl|lscpu|dmesg|journalctl|env|printenv"
    "|lsmod|modinfo|uname|gdscheck|gdscheck\\.py|lstopo|lstopo-no-graphics|cat|zcat|head|tail|grep|sysctl|hostname"
    "|nvidia-debugdump|ofed_info|numastat|lsusb|dmidecode|ls|free|df|ps|top|ifconfig|mlxconfig|mst|mlxlink|flint|show_gids"
    "|ibnetdiscover|iblinkinfo|ulimit|nvcc|docker|kubectl|python3?|mpirun|torchrun|srun"
)
_WORD = rf"(?:/[\w./\-]*/)?(?:{COMMANDS})"
_BEFORE = r"(?:(?:sudo|time|env|command|watch)(?: -\S+(?: [0-9.]+)?)* |[A-Z_][A-Z0-9_]*=\S* ){0,6}"
_COMMAND = re.compile(rf"(?:{_BEFORE})(?P<command>{_WORD}(?:[ \t].*)?)$")
_PROMPTS = (
    r"(?:\([^()\n]{1,40}\) ?)?[\[(]?[\w.\-]{1,40}@[\w.\-]{1,64}[^$#%<>\n]{0,100}[$#%>]",  # user@host:~/x$, [u@h x]#
    r"(?:\([^()\n]{1,40}\) ?)?[\w.\-]{1,64}:[~/][^\s$#%]{0,100} ?[$#%]",  # host:~#, as busybox has it
)
_NAMED = re.compile(rf"(?:\$ )?(?:{'|'.join(_PROMPTS)})[ \t]*(?P<rest>.*)$")
_BARE = re.compile(r"(?:[$#%>+❯➜ᐅλ»]{1,3}|(?:ba|z|k|c)?sh[-\w.]{0,12}[$#%]|PS [^>\n]{1,80}>)[ \t]*(?P<rest>.*)$")
_BANNER = re.compile(
    r"(?:[-=#*+>:]{3,80}[ \t]*|[-=#*+>:]{1,2}[ \t]+|(?:[Cc]ommand|[Rr]unning|[Oo]utput of|[Cc]md)[: \t]+)"
    r"[`'\"]?(?P<rest>[^`'\"]+?)[`'\"]?[ \t]*[-=#*+:]*[ \t]*$"
)
_OPTIONS = r"(?:[ \t]+(?:-\S+|topo|nvlink|[0-9,]+|\"[^\"\n]*\"|\S+:\S*|[|>].*))*"
_ALONE_KINDS = (
    rf"(?:lspci|nvidia-smi|ibstat|ibstatus|ibv_devinfo|ibdev2netdev|lscpu|dmesg|lsmod){_OPTIONS}",
    r"(?:rdma|ip)(?: -\S+)*[ \t]+(?:link|addr\w*|a|dev)(?: show)?",
    r"numactl[ \t]+(?:-H|--hardware)",
    r"journalctl(?: .*)?",
    r"cat[ \t]+/\S+",
    r"gdscheck(?:\.py)?[ \t]+-p",
    r"ethtool[ \t]+[\w.\-]+",
    r"uname[ \t]+-a",
)
"""Commands without a prompt: only those that no line of another output looks like."""
_ALONE = re.compile(rf"{_BEFORE}(?P<command>(?:/[\w./\-]*/)?(?:{'|'.join(_ALONE_KINDS)}))[ \t]*:?$")
_FILE = re.compile(r"\*\*\* (?P<path>/\S+)(?P<none> does not exist)?[ \t]*$")
_TAIL = re.compile(r"==> (?P<path>/\S+) <==$")
_LOG = re.compile(r"  (?P<log>/var/log/\S+|journalctl -b -[0-9]+):$")
_FENCE = re.compile(r"[ \t]*(?:```|~~~)[\w \t\-]*$")
RULE = re.compile(r"_{20,}[ \t]*$")
"""nvidia-bug-report.sh draws such a line between its parts."""
LONGEST = 400
"""Characters of a line that may be a heading."""
_MAYBE = re.compile(
    rf"\s*(?:\*\*\* /|_{{20}}|```|~~~|\(?[\[(]?[^\s@]{{0,80}}@|\([^()\n]{{1,40}}\) ?|[^\s:]{{1,64}}:[~/]"
    rf"|[-=#*+>$%❯➜ᐅλ»]|\S{{0,16}}sh[-\w.]{{0,12}}[$#%]|PS |[Cc]ommand|[Rr]unning|[Oo]utput|[Cc]md|sudo "
    rf"|time |env |watch |[A-Z_0-9]+=|(?:/\S*/)?(?:{COMMANDS})\b|/var/log/)"
)
"""One pattern that most lines of a long log do not match, before the many."""


def heading_of(line: str) -> str | None:
    """Return what a line says of the lines that follow: a command, a path, or nothing in particular; None: no heading.

    A path is that of a file whose text follows.
    """
    if len(line) > LONGEST or not _MAYBE.match(line):
        return None
    if m := _FILE.match(line):
        return "" if m["none"] else m["path"]
    if m := _TAIL.match(line):
        return m["path"]
    if RULE.match(line) or _FENCE.match(line):
        return ""
    if m := _LOG.match(line):
        return m["log"]
    plain = line.strip()
    if m := _NAMED.match(plain):
        return _command(m["rest"]) or m["rest"].strip()
    if (m := _BARE.match(plain)) and (command := _command(m["rest"])):
        return command
    if m := _BANNER.match(plain):
        plain = m["rest"]
    return _path_or(m["command"]) if (m := _ALONE.match(plain)) else None


def _command(text: str) -> str:
    m = _COMMAND.match(text.strip())
    return _path_or(m["command"].strip()) if m else ""


def _path_or(command: str) -> str:
    """Return the path of the one file that a command prints, else the command."""
    m = re.fullmatch(r"(?:cat|head|tail)(?: -\S+)*(?: [0-9]+)?[ \t]+(/(?:proc|sys|etc)/\S+)", command)
    return m[1] if m and "*" not in m[1] else command


def is_command(heading: str) -> bool:
    """Tell whether a heading is one of the commands whose output is looked at here, and no path or other program."""
    return re.match(rf"(?:{_BEFORE}){_WORD}(?=[ \t]|$)", heading) is not None


_PARTIAL = re.compile(r"\blspci\b(?:[ \t]+\S+)*?[ \t]+-[a-zA-Z]*[sd]\b|\blspci\b.*\|")


def is_selection(heading: str) -> bool:
    """Tell whether a command lists some PCI functions and not all: `lspci -d 10de:`, `lspci -s 01:00.0`, `| grep`."""
    return _PARTIAL.search(heading) is not None


_OTHER_BOOT = re.compile(r"\bjournalctl\b.*(?:-b|--boot)[ =]*-?[1-9]|\bjournalctl\b.*--list-boots")


def of_other_boot(heading: str) -> bool:
    """Tell whether what follows is the log of an earlier boot than the last (`journalctl -b -1`)."""
    return _OTHER_BOOT.search(heading) is not None


def of_many_boots(heading: str) -> bool:
    """Tell whether what follows is a log file that is kept over boots."""
    return re.search(r"(?:^|/)var/log/(?:messages|syslog|kern(?:el)?\.log)\b", heading) is not None


_FOREIGN = re.compile(r"(?:/[^/]+)*/(?:var/log/(?!dmesg|messages|syslog|kern)|var/lib/|usr/(?:share|lib|src|include)/)")


def is_foreign(heading: str) -> bool:
    """Tell whether what follows is a file of other programs, which may quote what is read here: X's log, dkms's."""
    return _FOREIGN.match(heading) is not None
