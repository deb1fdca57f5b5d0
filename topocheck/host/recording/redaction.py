"""What the names and identifiers of one machine become in a snapshot: the same name the same everywhere."""

from __future__ import annotations

import re

from topocheck.host.recording import identifiers
from topocheck.host.recording import vocabulary as words
from topocheck.host.recording.pseudonyms import Mapping as Replacements
from topocheck.model.base import REDACTED, is_digits

NO_NAMES = frozenset("localhost root nobody none n/a unknown default ubuntu ec2-user debian admin".split())
"""Words that stand where the name of a host or user could, and identify nobody."""
HOST_NAME = re.compile(r"[A-Za-z0-9_]([\w\-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([\w\-]*[A-Za-z0-9_])?)*\.?", re.ASCII)

_DEVICE = re.compile(
    r"""(?: lo | (?:eth|ib|bond|team|br|virbr|docker|dummy|tun|tap|wlan|usb|hsn|roce|rdma|net|nic|gpu|mgmt|data|vlan
          |macvlan|ipvlan|wg|vxlan|geneve|gre|gretap|sit|ip6tnl|tunl|cni|podman|lxcbr|lxdbr|opap|enP|fpc|mce|p|em)\d{1,4}
      | (?:en|ib|wl|ww|rdma|roce|eth|iw|opap|hfi|ibx|rocex)(?:P\d{1,5})?(?:(?:np|[poscfdnuiv])\d{1,5})+(?:r\d{1,3})?
      | (?:mlx[45]|mthca|bnxt_re|irdma|i40iw|efa|hfi1|qib|cxgb4|qedr|mana|manae|mana_ib|erdma|hns|rxe|siw|ionic|ocrdma
          |usnic|vmw_pvrdma|xscale|iw_cxgb4)_?(?:bond|an|ib|vf|re)?_?\d{1,4}
      | flannel\.\d{1,4} | kube-ipvs0 | kube-bridge | nodelocaldns | cilium_(?:net|host|vxlan|geneve) | tailscale\d
      | ovs-system | (?:GPU|NIC)\d{1,3}
    ) (?:\.\d{1,4}){0,2}""",
    re.VERBOSE | re.ASCII,
)
"""Names that the kernel, udev (systemd.net-naming-scheme(7)), rdma-core and common tools give by themselves."""
_DEVICE_ID = re.compile(r"(enx|wlx|ibx|veth|cali|br-|lxc|tap|vnet|lxc_|ovn-|cni-|tunl)([0-9a-f]{5,15})")
_FAMILIES = """lo eth ens eno enp enP ib ibp ibs bond team br virbr docker wlan hsn roce rdma mlx4_ mlx5_ mlx5_bond_
    bnxt_re irdma efa hfi1_ qib qedr mana erdma rxe siw veth cali flannel cilium rocep ionic_ usb""".split()
_REPLACED = re.compile(rf"{REDACTED}(-[0-9]+)?")
_USER_FOLDERS = ("home", "Users", "users", "people", "u")
_LONGEST_NAME = 64
"""Longer than any interface's (15) or RDMA device's (63)."""
_PATH_WORD = re.compile(
    r"(?:lib)?python\d(?:\.\d{1,2}){0,2}|cuda-\d{1,2}(?:\.\d)?|libnccl(?:-(?:net|tuner|env|profiler|ofi|gib|spcx)){0,3}\.so(?:\.\d{1,4}){0,3}|v?\d{1,3}(?:\.\d{1,3}){0,2}",
    re.ASCII,
)
_ENDINGS = re.compile(r"\.(?:xml|conf|txt|log|json|yaml|toml|cfg|so)$")
_SYSFS_WORD = re.compile(
    r"""(?: sys|devices|bus|pci|class|net|infiniband|drivers|driver|virtual|platform|kernel|iommu_groups|module|vmbus
      | auxiliary|acpi|soc|xen|system|virtio|hv_pci|ports|device|physfn|host\d{1,3}|uncore|mlx5_core|nvme
      | pci[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2} | [0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F]
      | virtio\d{1,4} | vif-\d{1,3} | LNXSYSTM:\d\d | LNXSYBUS:\d\d | [A-Z]{3,4}[0-9A-F]{4}:[0-9A-F]{2} | VMBUS:\d\d
      | [0-9a-f]{1,12}\.pcie? | mlx5_core\.(?:sf|eth|rdma|vnet)\.\d{1,5} | usb\d{1,3} | \d{1,3}-[\d.]{1,9}(?::\d\.\d)?
      | \.\.? | \d{1,6} )""",
    re.VERBOSE | re.ASCII,
)


class Redaction:
    """The replacements of one recording.

    Attributes:
        map: of numbers and addresses.
        hosts, users: names that were found where such names are expected -> what they become, wherever they occur.
        files: paths that settings name as topology files.
        devices: words of settings and names on this machine that need no replacement; a name that begins with such
            a word goes on doing so.
        interfaces: names of the network interfaces and RDMA devices of this machine.
        ordered: names of files of which the order counts -> what they become.
        kind: what is being replaced: unknown texts are numbered in each kind of its own.
    """

    def __init__(self, replacements: Replacements) -> None:
        self.map = replacements
        self.hosts: dict[str, str] = {}
        self.users: dict[str, str] = {}
        self.files: set[str] = set()
        self.devices: set[str] = set()
        self.interfaces: set[str] = set()
        self.ordered: dict[str, str] = {}
        self.kind = ""
        self._groups: dict[str, str] = {}

    def unknown(self, text: str, kind: str = "") -> str:
        """Return what stands for a text that is not on the allow-list: equal texts of one kind stay equal."""
        if not text.strip() or _REPLACED.fullmatch(text):
            return text
        return f"{REDACTED}-{self.map.count(f'unknown {kind or self.kind}', text)}"

    def identifier(self, text: str) -> str | None:
        """Return what a host, user or identifier becomes; None where the text is none that is known."""
        found = self.hosts.get(text.lower()) or self.users.get(text.lower())
        return found if found is not None else identifiers.replaced(self.map, text)

    def host(self, text: str) -> str:
        """Return what an address or the name of a host becomes; its domain is replaced apart."""
        if not text or text.lower() in NO_NAMES:
            return text
        if (address := identifiers.replaced(self.map, text)) is not None:
            return address
        if not HOST_NAME.fullmatch(text):
            return self.unknown(text)
        short, dot, domain = text.rstrip(".").partition(".")
        new = self.hosts.setdefault(short.lower(), self.map.name("node", short))
        return f"{new}.{self.map.name('domain', domain)}" if dot else new

    def user(self, text: str) -> str:
        """Return what the name of a user becomes."""
        if not text or text.lower() in NO_NAMES:
            return text
        return self.users.setdefault(text.lower(), self.map.name("user", text))

    @staticmethod
    def device_is_public(text: str) -> bool:
        """Tell whether an interface or RDMA device has a name that the system gives by itself."""
        return bool(_DEVICE.fullmatch(text))

    def device(self, text: str) -> str:
        """Return what the name of a network interface or RDMA device becomes.

        Names that the system gives stay; others keep what they have in common with each other and with settings.
        """
        if self.device_is_public(text):
            return text
        if len(text) > _LONGEST_NAME:
            return self.unknown(text)
        if m := re.fullmatch("(rxe_|siw_)(.+)", text):  # software RDMA, after the interface below it
            return m[1] + self.device(m[2])
        if m := _DEVICE_ID.fullmatch(text):
            mac = m[1] in ("enx", "wlx", "ibx") and len(m[2]) == 12
            return m[1] + (f"{self.map.mac(int(m[2], 16)):012x}" if mac else self.map.hexadecimal(m[2]))
        beginning = max((d for d in self.devices if text.startswith(d) and d != text), key=len, default="")
        return f"{beginning}x{self.map.shape(text[len(beginning) :])}" if text else ""

    def device_word(self, text: str) -> str:
        """Return what a word of a list of devices becomes: a name, or the beginning of several."""
        return text if self.begins_known(text) else self.device(text)

    def begins_known(self, text: str) -> bool:
        """Tell whether a text begins the name of a known family of devices, or that of one that is kept."""
        return any(f.startswith(text) for f in _FAMILIES) or any(d.startswith(text) for d in self.devices)

    def path(self, text: str) -> str:
        """Return what a path becomes, element by element; elements of public names stay."""
        out, user_next = [], False
        for part in text.split("/"):
            out.append(self.user(part) if user_next and part else self._element(part))
            user_next = part in _USER_FOLDERS
        return "/".join(out)

    def _element(self, part: str) -> str:
        if part in ("", ".", "..") or part.lower() in words.PATHS or _PATH_WORD.fullmatch(part):
            return part
        if (known := self.identifier(part)) is not None:
            return known
        ending = _ENDINGS.search(part)
        return self.map.name("name", part) + (ending[0] if ending else "")

    def sysfs(self, text: str) -> str:
        """Return what a path below /sys, or a link there, becomes; elements that the kernel names stay."""
        out: list[str] = []
        above = ""
        for part in text.split("/"):
            if above in ("net", "infiniband"):
                out.append(self.device(part))
            elif not part or _SYSFS_WORD.fullmatch(part):
                out.append(part)
            else:
                out.append(self.identifier(part) or self.map.name("device", part))
            above = part
        return "/".join(out)

    def cgroup(self, text: str) -> str:
        """Return what the path of a control group becomes: public words stay, ids and numbers keep their form."""
        parts = text.split("/")
        self._groups.update({p: self._group(p) for p in parts if p not in self._groups})
        return "/".join(self._groups[p] for p in parts)

    def _group(self, part: str) -> str:
        if part in ("", ".", ".."):
            return part
        # `slurm_gpu-a17`: the name of a host or user may hold the marks that part words.
        known = {**self.users, **self.hosts}
        here = [n for n in known if n in part.lower() and n not in words.CGROUPS]
        if not here:
            return self._group_words(part)
        names = "|".join(map(re.escape, sorted(here, key=len, reverse=True)))
        pieces = re.split(rf"(?i)(?<![0-9a-z])({names})(?![0-9a-z])", part)
        return "".join(known[p.lower()] if n % 2 else self._group_words(p) for n, p in enumerate(pieces))

    def _group_words(self, part: str) -> str:
        out: list[str] = []
        above = ""
        for m in _GROUP_PARTS.finditer(part):
            out.append(self._group_word(m, above))
            above = m[0].lower() if m[0] not in "-_.@:" else above
        return "".join(out)

    def _group_word(self, m: re.Match[str], above: str) -> str:
        if m["id"]:
            before = m["before"] if m["before"].lower() in words.CGROUPS or not m["before"] else "x"
            return before + self.map.hexadecimal(m["id"])
        word = m[0]
        if word in "-_.@:" or word.lower() in words.CGROUPS:
            return word
        if is_digits(word) and len(word) < 12:
            return self.number(word) if above not in ("user", "uid") else str(self.map.uid(int(word)))
        return self.identifier(word) or self.map.name("name", word)

    def number(self, text: str) -> str:
        """Return what the number of a job, session or the like becomes: 1, 2, ... in the order of appearance."""
        return str(self.map.count("number", text.lstrip("0") or "0"))


_GROUP_PARTS = re.compile(rf"(?P<before>[A-Za-z]*?)(?P<id>{identifiers.UUID})|[-_.@:]|[^-_.@:]+")
