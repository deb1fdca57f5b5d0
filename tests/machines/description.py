"""The description language: TOML with an indented PCI tree in it. README.md beside this file explains it."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from tests.machines.products import read_products

HERE = Path(__file__).parent
GTS = {1: "2.5", 2: "5.0", 3: "8.0", 4: "16.0", 5: "32.0", 6: "64.0", 7: "128.0"}
_ADDRESS = re.compile(r"(?:(?:(?P<domain>[0-9a-f]{4,8}):)?(?P<bus>[0-9a-f]{2}):)?(?P<dev>[0-9a-f]{2})\.(?P<fn>[0-7])")
_LINK = re.compile(r"([1-7])x(0|1|2|4|8|12|16|32)")
_PORTS = {"rp": "root_port", "up": "upstream", "down": "downstream", "bridge": "pcie_to_pci"}


class DescriptionError(Exception):
    """A description is wrong; says which machine, where in it, and what was expected."""


class Link(msgspec.Struct, frozen=True):
    """Generation (1 to 7) and lanes."""

    gen: int
    width: int


class Function(msgspec.Struct, kw_only=True):
    """One PCI function of a described machine; `options` are the words NAME=VALUE of its line."""

    address: str
    role: str
    product: dict[str, Any]
    options: dict[str, str]
    root: Root
    parent: Function | None = None
    children: list[Function] = msgspec.field(default_factory=list)
    secondary: int | None = None
    subordinate: int | None = None
    max: Link | None = None
    now: Link | None = None

    @property
    def kind(self) -> str:
        """The product's kind: gpu, nic, eth, nvme, nvswitch, port, other."""
        return str(self.product.get("kind", "other"))

    @property
    def is_bridge(self) -> bool:
        """Whether other functions may stand below this one."""
        return self.role in _PORTS.values()

    @property
    def node(self) -> int:
        """The NUMA node the kernel names for it; -1 where firmware did not say."""
        return int(self.options.get("node", self.root.node))

    @property
    def path(self) -> str:
        """The real path in sysfs."""
        above = self.parent.path if self.parent else self.root.path
        return f"{above}/{self.address}"


class Root(msgspec.Struct, kw_only=True):
    """One host bridge. `below` is the sysfs path it hangs on (a VMD function), else /sys/devices."""

    domain: str
    bus: int
    node: int
    options: dict[str, str]
    children: list[Function] = msgspec.field(default_factory=list)

    @property
    def path(self) -> str:
        """The real path in sysfs."""
        return f"{self.options.get('below', '/sys/devices')}/pci{self.domain}:{self.bus:02x}"


def load(name: str) -> dict[str, Any]:
    """Return the description of a machine with what it inherits merged in.

    Raises:
        DescriptionError: no such machine, not TOML, or an inheritance without end.
    """
    return _load(name, ())


def _load(name: str, seen: tuple[str, ...]) -> dict[str, Any]:
    if name in seen:
        raise DescriptionError(f"{name}: inherits from itself through {' -> '.join(seen)}")
    path = HERE / "descriptions" / f"{name}.toml"
    if not path.is_file():
        raise DescriptionError(f"{name}: there is no {path.name} beside the other descriptions")
    text = path.read_text()
    try:
        own = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise DescriptionError(f"{path.name}: not TOML: {e}") from e
    base = own.pop("inherits", None)
    if not base:
        return own
    inherited = _load(base, (*seen, name))
    if "case" in own:  # a report about a machine like it: the capture of the other says nothing of this one
        inherited.pop("expect", None)
    return merge(inherited, own)


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with `over` laid on it, table by table; anything but a table is replaced."""
    out = dict(base)
    for k, v in over.items():
        out[k] = merge(out[k], v) if isinstance(v, Mapping) and isinstance(out.get(k), Mapping) else v
    return out


@functools.cache
def products() -> dict[str, dict[str, Any]]:
    """Return the table of products."""
    return read_products()


def parse_link(text: str, where: str) -> Link:
    """Return the link of a word such as `4x16`."""
    m = _LINK.fullmatch(text)
    if not m:
        raise DescriptionError(f"{where}: {text!r} is not a link such as 4x16 (generation x lanes)")
    return Link(int(m[1]), int(m[2]))


def parse_tree(text: str, parts: Mapping[str, str], name: str) -> list[Root]:
    """Return the host bridges of a PCI tree, their functions numbered and their links negotiated."""
    lines = _expand(text, parts, name, 0)
    table, roots = products(), list[Root]()
    stack: list[tuple[int, Root | Function]] = []
    for indent, words, where in lines:
        while stack and stack[-1][0] >= indent:
            stack.pop()
        if words[0] == "root":
            root = _root(words[1:], where)
            roots.append(root)
            stack = [(indent, root)]
            continue
        if not stack:
            raise DescriptionError(f"{where}: stands below no root")
        f = _function(words, stack[-1][1], table, where)
        stack.append((indent, f))
    for root in roots:
        _number(root, name)
    return roots


def _expand(text: str, parts: Mapping[str, str], name: str, depth: int) -> list[tuple[int, list[str], str]]:
    """Return (indent, words, where) of each line, parts put in place and `3*` lines repeated with their children."""
    if depth > 5:
        raise DescriptionError(f"{name}: parts use each other without end")
    out: list[tuple[int, list[str], str]] = []
    raw = [(len(s) - len(s.lstrip()), s.split("#")[0].split()) for s in text.splitlines()]
    raw = [(i, w) for i, w in raw if w]
    at = 0
    while at < len(raw):
        indent, words = raw[at]
        below = at + 1
        while below < len(raw) and raw[below][0] > indent:
            below += 1
        block = raw[at:below]
        m = re.fullmatch(r"(\d+)\*", words[0])
        if m:
            plain = "\n".join(" " * i + " ".join(w[1:] if n == 0 else w) for n, (i, w) in enumerate(block))
            for _ in range(int(m[1])):
                out += _expand(plain, parts, name, depth + 1)
        elif words[0] in parts:
            if len(block) > 1:
                raise DescriptionError(f"{name}: {' '.join(words)!r} is a part: nothing can stand below it")
            body = parts[words[0]]
            for k, v in (w.split("=", 1) for w in words[1:]):
                body = body.replace(f"${k}", v)
            out += [(indent + i, w, where) for i, w, where in _expand(body, parts, name, depth + 1)]
        else:
            out.append((indent, words, f"{name}: {' '.join(words)!r}"))
            if len(block) > 1:
                inner = "\n".join(" " * i + " ".join(w) for i, w in block[1:])
                out += _expand(inner, parts, name, depth)
        at = below
    return out


def _options(words: list[str], where: str) -> dict[str, str]:
    out = {}
    for w in words:
        k, eq, v = w.partition("=")
        if not eq:
            raise DescriptionError(f"{where}: {w!r} is neither a product, a link, an address nor NAME=VALUE")
        out[k] = v
    return out


def _root(words: list[str], where: str) -> Root:
    m = re.fullmatch(r"([0-9a-f]{4,8}):([0-9a-f]{2})", words[0] if words else "")
    if not m:
        raise DescriptionError(f"{where}: a root needs an address such as 0000:3a")
    options = _options(words[1:], where)
    return Root(domain=m[1], bus=int(m[2], 16), node=int(options.pop("node", "-1")), options=options)


def _function(words: list[str], above: Root | Function, table: Mapping[str, Any], where: str) -> Function:
    words = list(words)
    same_device = words[0] == "+"
    if same_device:
        words.pop(0)
    word, role, product = words.pop(0), "endpoint", dict[str, Any]()
    if word in _PORTS:
        role = _PORTS[word]
        product = dict(table["default_port"])
        if words and words[0] in table:
            product = dict(table[words.pop(0)])
    elif word in table:
        product = dict(table[word])
        role = str(product.get("role", "endpoint"))
    else:
        raise DescriptionError(f"{where}: {word!r} is neither a port, a part nor a product of products.toml")
    address, link = "+" if same_device else "", None
    rest = []
    for w in words:
        if _ADDRESS.fullmatch(w):
            address = w
        elif _LINK.fullmatch(w):
            link = parse_link(w, where)
        else:
            rest.append(w)
    if link is None and "link" in product:
        link = parse_link(product["link"], where)
    parent = None if isinstance(above, Root) else above
    if parent is not None and not parent.is_bridge:
        raise DescriptionError(f"{where}: stands below {parent.product.get('name', parent.role)}, which is no port")
    f = Function(
        address=address,
        role=role,
        product=product,
        options=_options(rest, where),
        root=above if isinstance(above, Root) else above.root,
        parent=parent,
        max=link,
    )
    above.children.append(f)
    return f


def _number(root: Root, name: str) -> None:
    """Give each function its address: as told, else the next free bus in depth-first order, as firmware does."""
    top = _place(root.children, root, root.bus, root.bus, 1, name)
    if top > 255:
        raise DescriptionError(f"{name}: root {root.domain}:{root.bus:02x} runs out of bus numbers")


def _place(functions: list[Function], root: Root, bus: int, top: int, first_device: int, name: str) -> int:
    device, fn, used = first_device - 1, 0, set[str]()
    for f in functions:
        m = _ADDRESS.fullmatch(f.address)
        if m:
            device, fn = int(m["dev"], 16), int(m["fn"])
            if m["bus"] and int(m["bus"], 16) != bus:
                raise DescriptionError(f"{name}: {f.address} cannot stand on bus {bus:02x}")
        elif f.address == "+":
            fn += 1
        else:
            device, fn = device + 1, 0
        f.address = f"{root.domain}:{bus:02x}:{device:02x}.{fn}"
        if f.address in used or device > 31 or fn > 7:
            raise DescriptionError(f"{name}: {f.address} is taken twice or is no address")
        used.add(f.address)
        if f.is_bridge:
            told = next((_ADDRESS.fullmatch(c.address) for c in f.children if c.address not in ("", "+")), None)
            f.secondary = int(told["bus"], 16) if told and told["bus"] else max(top, bus) + 1
            top = _place(f.children, root, f.secondary, max(top, f.secondary), 0, name)
            f.subordinate = top
    return top


def functions(roots: list[Root]) -> list[Function]:
    """Return every function, sorted by address."""
    out: list[Function] = []

    def walk(fs: list[Function]) -> None:
        for f in fs:
            out.append(f)
            walk(f.children)

    for root in roots:
        walk(root.children)
    return sorted(out, key=lambda f: tuple(int(x, 16) for x in re.split("[:.]", f.address)))


def negotiate(fs: list[Function]) -> None:
    """Set the current link of both ends of each link: the lower of what both can do, unless `now=` says else.

    `now=` on a function is the state of the link above it (below it for a port that has no child function).
    """
    for f in fs:
        where = f.address
        if "max" in f.options:
            f.max = parse_link(f.options["max"], where)
    for f in sorted(fs, key=lambda f: -f.path.count("/")):
        if f.role in ("root_port", "downstream") and f.max is None:
            f.max = next((c.max for c in f.children if c.max), Link(4, 16))
    for f in fs:
        port = f.parent
        if f.max is None or (port is None and f.role != "root_port") or f.role == "root_port":
            continue
        if port is None or port.role not in ("root_port", "downstream"):
            continue
        now = Link(min(f.max.gen, port.max.gen), min(f.max.width, port.max.width)) if port.max else f.max
        if f.product.get("idle_gen") and f.options.get("busy") != "1":
            now = Link(min(now.gen, int(f.product["idle_gen"])), now.width)
        if "now" in f.options:
            now = parse_link(f.options["now"], f.address)
        f.now = now
        if port.now is None or f.address.endswith(".0"):
            port.now = parse_link(port.options["now"], port.address) if "now" in port.options else now
    for f in fs:
        if f.now is None and f.max and not f.is_bridge:
            f.now = parse_link(f.options["now"], f.address) if "now" in f.options else f.max
        elif f.now is None and f.max and f.is_bridge:
            f.now = Link(1, 0)
