"""The forms of answers that only some probes get, and what stands in the holes of their questions (see kept.py)."""

from __future__ import annotations

import ipaddress
import re
from typing import Any

from topocheck.host.base import Answer
from topocheck.host.live import nvml as nvml_calls
from topocheck.host.live.kmsg import of_interest
from topocheck.host.recording import vocabulary as words
from topocheck.host.recording.forms import (
    ADDRESS,
    DEVICE,
    GID,
    NAME,
    SERIAL,
    UUID,
    VERSION,
    Form,
    exactly,
    fields,
    keyed,
    labelled,
    lines,
    list_of,
    one_of,
    scalar,
    wordwise,
)  # fmt: skip
from topocheck.host.recording.redaction import Redaction
from topocheck.host.recording.texts import matrix, topology
from topocheck.model.base import is_digits
from topocheck.probes.modules import MODULES, PEER_MEMORY
from topocheck.probes.nvidia_procfs import PARAMETERS
from topocheck.probes.settings import DEFAULT_TOPO_FILE
from topocheck.probes.software import NCCL_LINKS, SLURM_CONF, parse_distributions
from topocheck.probes.system import LOGIND, SERVICES

__all__ = ["LOGIND", "NCCL_LINKS", "SERVICES", "SLURM_CONF"]

SPEED = exactly("a speed", r"[0-9]{1,3}(?:[.,][0-9]{1,3})? ?GT/s(?: PCIe)?", "Unknown(?: speed)?")
STATE = exactly("a numbered state", r"[0-9]{1,2}: (?:<unknown>|[A-Z][A-Za-z_]{1,24}(?: [A-Z][a-z]{1,12})?)")
RATE = exactly("a rate", r"[0-9]{1,6}(?:\.[0-9]{1,3})? G[bB]/sec(?: \([0-9]{1,2}X(?: [A-Z]{1,4}[0-9]{0,3})?\))?")
GID_TYPE = exactly("the type of a GID", r"IB/RoCE v1|RoCE v2|IB|RoCE v1\.5")
DRIVER = wordwise("the name of a driver; one that is not public is replaced", words.DRIVERS)
BOARD = exactly(
    "the id of a board's model", r"(?:MT_|DEL|HP_|HPE|LNV|IBM|CRY|NVD|ISL|SM_|ORC|MSF|FB_|AMZ|DELL?)[0-9]{10}"
)
IOMMU = exactly(
    "names of IOMMUs", r"(?:dmar|ivhd)[0-9]{1,3}|smmu[0-9]?\.0x[0-9a-f]{1,16}|arm-smmu[\w.\-]{0,4}", "apple-dart"
)
IOMMU_TYPE = one_of("identity DMA DMA-FQ DMA-API unmanaged blocked auto none")
VERBS = exactly("names of device files", r"(?:uverbs|umad|issm|ucm)[0-9]{1,4}|rdma_cm|by-path|by-ibdev", drop=True)
VERBS_CLASS = exactly("names of device files", r"uverbs[0-9]{1,4}|abi_version", drop=True)
NVIDIA_FILE = exactly("names of device files", r"nvidia(?:[0-9]{1,3}|ctl|-uvm)", drop=True)
SYMBOL = exactly(
    "whether the kernel has the peer-memory interface", re.escape(PEER_MEMORY) + r" [a-z0-9_]{1,40}", drop=True
)
LOG_LINE = Form("messages about GPUs, NICs and ports: topocheck/host/live/kmsg.py", lambda r, t: of_interest(t))
INTERFACE = Form(DEVICE.what, lambda r, t: t if t == "bonding_masters" else r.device(t))
DEVICES = Form(DEVICE.what, lambda r, t: " ".join(r.device(w) for w in t.split()))
BUILD_OPTION = exactly("options of the kernel's build", "CONFIG_[A-Z0-9_]{1,40}=[ymn]", drop=True)
CONTAINER = one_of("docker podman lxc lxc-libvirt systemd-nspawn oci rkt wsl proot pouch kubernetes garden containerd")
STATUS = "kind, size, owner (replaced), mode and time of a file"
NVIDIA_VERSION = lines(
    exactly(
        "the version",
        r"NVRM version: NVIDIA UNIX (?:Open )?(?:Kernel Module for )?[a-z0-9_]{3,12}(?: Kernel Module)?\s+"
        r"[0-9]{3}\.[0-9]{2,3}(?:\.[0-9]{1,3})?(?:\s+Release Build)?",
        drop=True,
    )
)
KERNEL = Form(VERSION.what, lambda r, t: _kernel(r, t))
DEVICE_TREE = wordwise(
    "public words",
    frozenset(
        """linux,kvm linux,dummy-virt qemu,pseries xen,xen vmware ibm,pseries ibm,powernv ibm,p9-openbmc nvidia,grace
        nvidia,thor nvidia,tegra234 nvidia,tegra194 nvidia,tegra264 arm,foundation-v8 xlnx,zynqmp""".split()
    ),
    word=r"[^\0\s]+",
)
LIBRARY = Form("the version in the name of a library", lambda r, t: _library(r, t))
HOME = Form("a path, replaced", lambda r, t: _home(r, t))
TOPOLOGY = Form("NCCL's own elements and attributes; GUIDs and other names are replaced", topology)
PACKAGE = Form("versions of the packages that are looked for", lambda r, t: _package(r, t))
REMOVE_IPC = Form("yes or no", lambda r, t: _remove_ipc(r, t))
AER_LINE = Form("counters", lambda r, t: _aer_line(r, t))
CGROUP_LINE = Form(
    "controllers, and paths of which ids, numbers and other names are replaced", lambda r, t: _cgroup_line(r, t)
)
MODULE_LINE = Form("name, size and users of a module", lambda r, t: _module_line(r, t))
LIMIT = exactly(
    "limits",
    r"Max (?:cpu time|file size|data size|stack size|core file size|resident set|processes|open files|locked memory"
    r"|address space|file locks|pending signals|msgqueue size|nice priority|realtime priority|realtime timeout)"
    r"\s+(?:unlimited|[0-9]{1,20})\s+(?:unlimited|[0-9]{1,20})(?:\s+(?:seconds|bytes|processes|files|locks|signals|us))?",
    drop=True,
)
CPU = keyed(
    {
        **dict.fromkeys(("processor", "cpu family", "model", "cpu cores"), exactly("", "[0-9]{1,6}")),
        **dict.fromkeys(
            ("CPU implementer", "CPU part", "CPU architecture"), exactly("", "0x[0-9a-f]{1,4}", "[0-9]{1,2}")
        ),
        "vendor_id": one_of("GenuineIntel AuthenticAMD HygonGenuine CentaurHauls ARM"),
        "model name": NAME,
        "cpu": Form("", lambda r, t: t if re.fullmatch(r"POWER[0-9]{1,2}[\w(), .]{0,40}", t) else NAME(r, t)),
        "flags": exactly("", "hypervisor"),
        "Features": exactly("", "hypervisor"),
    },
    "maker, name and numbers of the processor; of its flags only `hypervisor`",
)
PARAMETER = keyed(
    {p: wordwise("", words.REGISTRY, "-?[0-9]{1,20}", "0x[0-9a-fA-F]{1,16}") for p in PARAMETERS},
    "numbers and public keys of parameters",
)
OS_NAME = labelled(NAME, NAME.what, "PRETTY_NAME=(?P<v>.*)")
TOOLKIT = labelled(VERSION, VERSION.what, r"CUDA Version (?P<v>\S+)", r'\{"cuda":\{"version":"(?P<v>[^"\\]*)"\}\}')
TORCH = labelled(
    VERSION,
    "versions of torch and its CUDA",
    r"^__version__\s*(?::\s*[A-Za-z\[\]]{1,20}\s*)?=\s*['\"](?P<v>[^'\"]+)['\"]",
    r"^cuda\s*(?::\s*[A-Za-z\[\]]{1,20}\s*)?=\s*['\"](?P<v>[^'\"]+)['\"]",
)


def link(form: Form) -> Form:
    """Return the form of a link's target: folders as of /sys, the last element by a form."""

    def change(r: Redaction, text: str) -> str:
        folder, slash, name = text.rpartition("/")
        return r.sysfs(folder) + slash + (form(r, name) or "")

    return Form(form.what, change)


def slot(r: Redaction, text: str) -> str:
    """Return what the name of a slot becomes: numbers stay."""
    known = re.fullmatch(r"[0-9]{1,5}(?:-[0-9]{1,3}){0,3}", text, re.ASCII)
    return text if known else r.map.name("slot", text)


def names(r: Redaction, answer: Answer) -> Answer:
    """Return the names of a vendor and a device."""
    if not isinstance(answer, list):
        return scalar(r, answer)
    return [NAME(r, a) if isinstance(a, str) else None for a in answer]


def addresses(r: Redaction, answer: Answer) -> Answer:
    """Return the addresses of one interface, each with its family, and its netmask where it has one."""
    if not isinstance(answer, list):
        return scalar(r, answer)
    entries = [e for e in answer if isinstance(e, list) and len(e) > 1]
    return [
        [_FAMILY(r, str(kind)), _address(r, str(text)), *(_NETMASK(r, str(m)) for m in more[:1])]
        for kind, text, *more in entries
    ]


_FAMILY = one_of("inet inet6 link")


def _is_netmask(text: str) -> bool:
    """Tell whether a text is the netmask of some length, of either family."""
    try:
        return bool(ipaddress.ip_network(f"{'::' if ':' in text else '0.0.0.0'}/{_ones(text)}"))
    except ValueError:
        return False


def _ones(text: str) -> str:
    """Return the length of a netmask in digits."""
    mask = ipaddress.ip_address(text)
    ones = int(mask).bit_count()
    if int(mask) != (1 << mask.max_prefixlen) - (1 << (mask.max_prefixlen - ones)):
        raise ValueError(text)
    return str(ones)


_NETMASK = Form("a netmask", lambda r, text: text if _is_netmask(text) else r.unknown(text))
_ROUTE = re.compile(
    r"(\S{1,15})(\s+[0-9A-Fa-f]{8})(\s+[0-9A-Fa-f]{8})((?:\s+[0-9A-Fa-f]{1,10}){4})(\s+[0-9A-Fa-f]{8})((?:\s+[0-9]{1,10}){3})"
)


def _route(r: Redaction, text: str) -> str | None:
    """Return a line of /proc/net/route: the interface's name as elsewhere, addresses replaced, the netmask kept.

    A destination's bits beyond the netmask stay zero, so that it goes on being the network of its interface.
    """
    if text.startswith("Iface"):
        return text if re.fullmatch(r"[A-Za-z\s]{20,120}", text) else None
    m = _ROUTE.fullmatch(text)
    if m is None:
        return None
    mask = int.from_bytes(bytes.fromhex(m[5].strip()), "little")

    def replaced(found: str, keep: int) -> str:
        at = len(found) - 8
        value = int.from_bytes(bytes.fromhex(found[at:]), "little")
        return found[:at] + (r.map.ipv4(value) & keep).to_bytes(4, "little").hex().upper()

    return r.device(m[1]) + replaced(m[2], mask) + replaced(m[3], 0xFFFFFFFF) + m[4] + m[5] + m[6]


ROUTE = Form("names of interfaces, as elsewhere; addresses, replaced; numbers", _route)


def _address(r: Redaction, text: str) -> str:
    bare, percent, zone = text.partition("%")
    return (GID(r, bare) or "") + percent + r.device(zone)


def user(r: Redaction, answer: Answer) -> Answer:
    """Return what a user or group id becomes."""
    return r.map.uid(answer) if isinstance(answer, int) and not isinstance(answer, bool) else scalar(r, answer)


FILE_STATUS = fields(
    kind=one_of("file dir char block link fifo socket"),
    uid=user,
    gid=user,
    **dict.fromkeys(("size_bytes", "mode", "mtime", "device", "rdev"), scalar),
)


def _home(r: Redaction, text: str) -> str:
    folder, slash, name = text.rstrip("/").rpartition("/")
    return r.path(folder) + slash + r.user(name) if name.lower() in r.users else r.path(text)


def _kernel(r: Redaction, text: str) -> str:
    m = re.match(r"Linux version (\S+)(.*)", text, re.DOTALL)
    if m is None:
        return r.unknown(text)
    rest = m[2] if m[2] in ("", " gVisor", " #1 SMP Sun Jan 10 15:06:54 PST 2016") else ""
    return f"Linux version {VERSION(r, m[1])}{rest}"


def _library(r: Redaction, text: str) -> str:
    folder, slash, name = text.rpartition("/")
    known = re.fullmatch(r"lib(?:nccl|nvidia-ml)\.so(?:\.[0-9]{1,4}){0,4}", name, re.ASCII)
    return r.path(folder) + slash + (name if known else r.map.name("name", name))


def _package(r: Redaction, text: str) -> str | None:
    if not parse_distributions([text]):
        return None
    name, _, rest = text.partition("-")
    version, _, ending = rest.rpartition(".")
    return f"{name}-{VERSION(r, version)}.{ending}"


def _remove_ipc(r: Redaction, text: str) -> str | None:
    m = re.match(r"(RemoveIPC\s*=\s*)(.*)", text)
    if m is None:
        return None
    return m[1] + (m[2] if re.fullmatch("yes|no|true|false|on|off|1|0|y|n|t|f|", m[2].lower()) else r.unknown(m[2]))


def _aer_line(r: Redaction, text: str) -> str | None:
    name, _, number = text.rpartition(" ")
    if not name or not re.fullmatch("[0-9]{1,20}", number):
        return None
    return text if name.strip() in _AER else f"{r.unknown(name)} {number}"


_AER = frozenset(
    """RxErr BadTLP BadDLLP Rollover Timeout NonFatalErr CorrIntErr HeaderOF Undefined DLP SDES TLP FCP CmpltTO
    CmpltAbrt UnxCmplt RxOF MalfTLP ECRC UnsupReq ACSViol UncorrIntErr BlockedTLP AtomicOpBlocked TLPBlockedErr
    PoisonTLPBlocked DMWrReqBlocked IDECheck MisIDETLP PCRC_CHECK TLPXlatBlocked TOTAL_ERR_COR TOTAL_ERR_FATAL
    TOTAL_ERR_NONFATAL""".split()
)
"""Linux drivers/pci/pcie/aer.c."""


def _module_line(r: Redaction, text: str) -> str | None:
    parts = text.split()
    if len(parts) < 3 or parts[0] not in MODULES or not is_digits(parts[1]):
        return None
    return " ".join([*parts[:2], parts[2] if re.fullmatch("[0-9]{1,9}|-", parts[2]) else r.unknown(parts[2])])


_CONTROLLERS = frozenset(
    """cpuset cpu cpuacct blkio memory devices freezer net_cls perf_event net_prio hugetlb pids rdma misc debug
    name=systemd name=elogind name=openrc""".split()
)


def _cgroup_line(r: Redaction, text: str) -> str | None:
    number, _, rest = text.partition(":")
    controllers, _, path = rest.partition(":")
    if not re.fullmatch("[0-9]{1,6}", number) or not path.startswith("/"):
        return None
    known = (c if c in _CONTROLLERS or not c else f"name={r.unknown(c)}" for c in controllers.split(","))
    return f"{number}:{','.join(known)}:{r.cgroup(path)}"


def topology_file(r: Redaction, text: str) -> str | None:
    """Return what the path of a topology file becomes; None where no setting names it."""
    return r.path(text) if text in r.files or text == DEFAULT_TOPO_FILE else None


CALL_TEXTS: dict[str, Form] = {
    "DeviceGetName": NAME,
    "DeviceGetUUID": UUID,
    "DeviceGetUuid": UUID,
    "DeviceGetSerial": SERIAL,
    "SystemGetDriverVersion": VERSION,
    "SystemGetNVMLVersion": VERSION,
    "DeviceGetVbiosVersion": exactly("a version", r"[0-9A-Fa-f]{2}(?:\.[0-9A-Fa-f]{2}){2,4}"),
    "DeviceGetBoardPartNumber": exactly("a part number", r"[0-9A-Z]{3}-[0-9A-Z]{5}-[0-9A-Z]{4}-[0-9A-Z]{3}"),
    "DeviceGetPCIBusId": ADDRESS,
}
_PROCESSES = list_of(fields(pid=scalar, usedGpuMemory=scalar))
CALL_STRUCTS: dict[str, Any] = {
    "DeviceGetGpuFabricInfoV": fields(
        clusterUuid=UUID, **dict.fromkeys(("status", "cliqueId", "state", "healthMask", "healthSummary"), scalar)
    ),
    "DeviceGetMigDeviceHandleByIndex": fields(uuid=UUID, name=NAME),
    "DeviceGetMemoryInfo": fields(**dict.fromkeys(("total", "free", "used", "reserved"), scalar)),
    "DeviceGetComputeRunningProcesses": _PROCESSES,
    "DeviceGetGraphicsRunningProcesses": _PROCESSES,
    **{
        call: fields(**{n: ADDRESS if n == "busId" else scalar for n in members})
        for call, members in nvml_calls.STRUCTS.items()
    },
}
STRUCT_WORDS = {
    "DeviceGetGpuFabricInfoV": "numbers, and the UUID of the cluster, replaced",
    "DeviceGetMigDeviceHandleByIndex": "a UUID, replaced, and words of public product names",
    "DeviceGetPciInfo": "a PCI address and PCI ids",
    "DeviceGetNvLinkRemotePciInfo": "a PCI address and PCI ids",
}
"""What stays of a struct that is not of numbers alone."""

VERSION_OUTPUT = fields(rc=scalar, stdout=VERSION, stderr=VERSION)
_MPI = labelled(
    VERSION,
    "",
    r"\((?:Open MPI|OpenRTE)\)\s+(?P<v>\S+)",
    r"Intel\(R\) MPI Library Version\s+(?P<v>\S+(?:\s+Update\s+\d+)?)",
    r"(?i:(?:MVAPICH )?HYDRA build details: Version:)\s+(?P<v>\S+)",
)
MPIRUN_OUTPUT = fields(rc=scalar, stdout=_MPI, stderr=_MPI)
_OMPI = lines(
    exactly(
        "",
        r"mca:(?:mpi|opal|coll|pml):base:param:(?:mpi_|opal_)?built_with_cuda_support:value:(?:true|false)",
        drop=True,
    )
)
OMPI_OUTPUT = fields(rc=scalar, stdout=_OMPI, stderr=_OMPI)
_UNITS = lines(
    keyed(
        {
            "Id": exactly("", "|".join(rf"{s}\.service" for s in SERVICES)),
            "LoadState": one_of("loaded not-found masked error bad-setting stub merged"),
            "ActiveState": one_of("active inactive failed activating deactivating reloading maintenance refreshing"),
        },
        "",
        "=",
    )
)
UNITS_OUTPUT = fields(rc=scalar, stdout=_UNITS, stderr=_UNITS)
_MATRIX = Form("", matrix)
MATRIX_OUTPUT = fields(rc=scalar, stdout=_MATRIX, stderr=_MATRIX)
