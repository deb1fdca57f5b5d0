"""What the checks of settings share: the settings in force, NCCL's version, and NCCL's rule for lists of names."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from topocheck.checks.registry import Context, once
from topocheck.knowledge.nccl import TABLE_VERSION, Version, parse_version, version_key
from topocheck.model.base import Evidence, Missing, Reason, known
from topocheck.model.system import Setting, SettingFacts
from topocheck.nccl.rules.settings import Settings
from topocheck.topology.types import Nic

_INSTALLED = ("nccl", "nccl_system")
"""Names in SoftwareFacts: the library PyTorch brings along is the one a job uses, so it comes first."""


OWN_NETWORKS = frozenset({"ib", "socket"})
"""NCCL's own networks, whose names it compares without regard to case (src/net.cc)."""


def installed_version(c: Context) -> Version | None:
    """Return the version of the NCCL that a job here would load, or None where it cannot be determined."""
    if known(c.nccl.version):
        found = parse_version(c.nccl.version)
        if found is not None:
            return found
    texts = (c.node.software.versions.get(name) for name in _INSTALLED)
    return next((v for v in (parse_version(t) for t in texts if t) if v is not None), None)


def judged_version(c: Context) -> Version:
    """Return the version to judge by: the installed one, else the newest that is known here."""
    return installed_version(c) or version_key(TABLE_VERSION)


def dotted(version: Version) -> str:
    """Return `2.21.5`."""
    return ".".join(map(str, version))


def version_words(c: Context) -> str:
    """Return `NCCL 2.21.5`, or words that say by which version is judged where the installed one is not known."""
    found = installed_version(c)
    return f"NCCL {dotted(found)}" if found else f"NCCL {TABLE_VERSION} (the installed version is not known)"


def version_evidence(c: Context) -> tuple[Evidence, ...]:
    """Quote where the version was found."""
    return next((found for name in _INSTALLED if (found := c.node.software.evidence(name))), ())


@once
def in_force(c: Context) -> dict[str, Setting]:
    """Return name -> setting, those in force."""
    return {s.name: s for s in c.node.settings.nccl if s.in_force}


@once
def values(c: Context) -> Settings:
    """Return the settings as the version here reads them."""
    return Settings({name: s.value for name, s in in_force(c).items()}, judged_version(c))


def quoted(s: Setting) -> tuple[Evidence, ...]:
    """Quote a setting where it stands: the environment, or a file with its line."""
    return (Evidence(s.source, f"{s.name}={s.value}"),)


def place(s: Setting) -> str:
    """Return the subject of a finding about a setting: its name, and the file where it is not the environment."""
    return s.name if s.source == "environment" else f"{s.name} ({s.source})"


class Names(msgspec.Struct, frozen=True):
    """A list of names as NCCL reads it (src/misc/socket.cc and src/misc/utils.cc, parseStringList).

    A leading `^` excludes, a `=` after it asks for exact names; otherwise each word is the beginning of a name.
    `words` are (name, rest after a colon).
    """

    exclude: bool
    exact: bool
    words: tuple[tuple[str, str], ...]

    def matched_by(self, word: str, names: Iterable[str]) -> list[str]:
        """Return the names that one word means."""
        return [n for n in names if (n == word if self.exact else n.startswith(word))]

    def chosen(self, names: Iterable[str]) -> list[str]:
        """Return the names that the whole list leaves."""
        every = list(names)
        hit = {n for word, _ in self.words for n in self.matched_by(word, every)}
        return [n for n in every if (n in hit) is not self.exclude]


MAX_NAMES = 256
"""Names of a list that are looked at; NCCL reads 32 of devices and 16 of interfaces (MAX_IB_DEVS, MAX_IFS)."""


def read_names(text: str) -> Names:
    """Return a list such as `^=mlx5_1:1,mlx5_2`."""
    exclude = text.startswith("^")
    text = text.removeprefix("^")
    exact = text.startswith("=")
    text = text.removeprefix("=")
    parts = [w.partition(":") for w in text.split(",") if w][:MAX_NAMES]
    return Names(exclude, exact, tuple((a, b) for a, _, b in parts if a))


def shadowed_twins(names: Names, present: Iterable[str]) -> dict[str, list[str]]:
    """Return word -> other names that it means too, where the word is a whole name itself.

    A word that is nobody's whole name (`mlx5`, `eth`) is a beginning on purpose; a twin that the list also gives by
    its whole name was meant too.
    """
    every = list(present)
    told = {w for w, _ in names.words}
    out: dict[str, list[str]] = {}
    if names.exact:
        return out
    for word, _ in names.words:
        others = [n for n in names.matched_by(word, every) if n != word and n not in told]
        if word in every and others:
            out[word] = others
    return out


def active_ports(nic: Nic) -> list[int]:
    """Return the numbers of a NIC's ports that are ACTIVE."""
    return [p.port for p in nic.rdma.ports if p.state == "ACTIVE"] if nic.rdma is not None else []


@once
def active_nics(c: Context) -> tuple[Nic, ...]:
    """Return the NICs with an active port."""
    return tuple(n for n in c.topology.nics if active_ports(n))


def no_active_nic(c: Context) -> str:
    """Return why there is no NIC to judge: there is none that is up, or nobody can tell."""
    rdma = c.node.net.rdma
    if isinstance(rdma, Missing) and rdma.reason is not Reason.ABSENT:
        return f"RDMA devices cannot be determined ({rdma}); see rdma.port-down"
    return "no RDMA NIC with an active port"


@once
def chosen_nics(c: Context) -> tuple[Nic, ...]:
    """Return the NICs with an active port that NCCL_IB_HCA leaves to NCCL."""
    hca = in_force(c).get("NCCL_IB_HCA")
    nics = active_nics(c)
    if hca is None:
        return nics
    left = set(read_names(hca.value).chosen(n.label for n in nics))
    return tuple(n for n in nics if n.label in left)


def misread_files(facts: SettingFacts) -> dict[str, tuple[str, ...] | Missing]:
    """Return the settings files that NCCL does not read as they stand -> what it misreads, or why it is not read.

    A file that is not there counts where NCCL_CONF_FILE names it, which NCCL takes from the environment only.
    """
    named = {s.value for s in facts.nccl if s.name == "NCCL_CONF_FILE" and s.source == "environment"}
    return {
        path: said
        for path, said in facts.conf_files.items()
        if said and (path in named or not isinstance(said, Missing) or said.reason is not Reason.ABSENT)
    }


def misread_text(said: tuple[str, ...] | Missing) -> str:
    """Return what is the matter with a settings file (`misread_files`) in words."""
    if not isinstance(said, Missing):
        return "; ".join(said)
    if said.reason is Reason.ABSENT:
        return "NCCL_CONF_FILE names it, and there is no such file"
    if said.reason is Reason.NOT_VISIBLE_HERE:
        return said.detail
    why = said.reason.value.replace("_", " ")
    detail = "" if said.reason is Reason.NOT_RECORDED else said.detail
    return f"cannot be read: {why}" + (f" ({detail})" if detail else "")
