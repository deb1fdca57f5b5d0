"""What a snapshot holds of environment variables and settings: for each name, the form of its value.

What a value holds beside its form is replaced by a word that NCCL understands as little as what it stands for, so
that the findings are the same.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

from topocheck.host.base import Answer
from topocheck.host.live.filters import VARIABLE_PREFIXES, known_variable
from topocheck.host.recording import vocabulary as words
from topocheck.host.recording.forms import HOST, VERSION, Form, exactly, scalar
from topocheck.host.recording.redaction import Redaction
from topocheck.knowledge.nccl import foreign_reader, lookup, nearest, settings
from topocheck.model.base import REDACTED, is_digits
from topocheck.model.hostlist import expand_hostlist

_NUMBER = r"\s*[+-]?(?:0[xX][0-9a-fA-F]{1,12}(?![0-9a-fA-F])|[0-9]{1,12}(?![0-9]))"
_SIZE = rf"{_NUMBER}(?:\.[0-9]{{1,6}})?\s*(?:[kKmMgGtT]i?[bB]?|[bB]|us|ms|s|m|inf)?"
_LEVELS = frozenset("loc nvl nvb c2c pix pxb p2c pxn phb sys node soc dis net port".split())
_ALGORITHMS = frozenset("allreduce allgather reducescatter broadcast reduce sendrecv".split())


def _switch(r: Redaction, text: str) -> str:
    """A number as NCCL reads it, from the left; `true` and the like stay, since they are what people write."""
    if re.fullmatch(_SIZE, text) or text.lower() in words.SETTINGS or text.lower() in _LEVELS:
        return text
    # Longer than any setting: no number of anything here, but one to NCCL.
    text = re.sub(r"^(\s*[+-]?)([0-9]{13,})", lambda m: m[1] + "9" * len(m[2]), text)
    m = re.match(r"\s*[+-]?9{13,}", text) or re.match(_NUMBER, text)
    return m[0] + r.unknown(text[m.end() :]) if m else r.unknown(text)


def listed(known: frozenset[str]) -> Callable[[Redaction, str], str]:
    """Return what keeps of words between commas, colons and the like the known ones, and numbers."""

    def one(r: Redaction, word: str) -> str:
        return word if word.lower() in known or re.fullmatch(_SIZE, word) else _other(r, word)

    def change(r: Redaction, text: str) -> str:
        def between(m: re.Match[str]) -> str:
            return r.identifier(m[0]) or re.sub("[^:]+", lambda n: one(r, n[0]), m[0])

        return re.sub(r"[^\s,;^=|]+", between, text)

    return change


def _other(r: Redaction, word: str) -> str:
    return r.identifier(word) or r.unknown(word)


def _devices(r: Redaction, text: str) -> str:
    def one(m: re.Match[str]) -> str:
        if (address := r.identifier(m[0])) is not None:  # Open MPI takes subnets, too
            return address
        name, *rest = m[0].split(":")
        return ":".join([r.device_word(name), *(p if re.fullmatch("[0-9]{1,4}", p) else r.unknown(p) for p in rest)])

    return re.sub(r"[^\s,;^=]+", one, text)


def _gpus(r: Redaction, text: str) -> str:
    def one(m: re.Match[str]) -> str:
        word = m[0]
        if re.fullmatch(r"-?[0-9]{1,4}(?:-[0-9]{1,4})?(?::[0-9]{1,3})?", word) or word.lower() in words.SETTINGS:
            return word
        # A UUID or its beginning, with the numbers of a MIG instance.
        uuid = re.fullmatch(r"((?:MIG-)?GPU-|MIG-)([0-9a-fA-F\-]{1,40})((?:/[0-9]{1,3}){0,2})", word)
        if uuid:
            return uuid[1] + r.map.hexadecimal(uuid[2]) + uuid[3]
        return _other(r, word)

    return re.sub(r"[^\s,]+", one, text)


def _host_and_port(r: Redaction, text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not colon or not re.fullmatch("[0-9]{1,5}", port) or (":" in host and not host.startswith("[")):
        return r.host(text)
    inner = host.removeprefix("[").removesuffix("]")
    return f"[{r.host(inner)}]:{port}" if host.startswith("[") else f"{r.host(inner)}:{port}"


def _hosts(r: Redaction, text: str) -> str:
    return ",".join(r.host(h) for h in expand_hostlist(text))


def _path(r: Redaction, text: str) -> str:
    """A path; `%h` and `%p`, by which each process of a job gets a file of its own, stay."""
    new = r.path(text)
    return new + "".join(f".{p}" for p in re.findall("%[hp]", text) if p not in new)


def _library(r: Redaction, text: str) -> str:
    return re.sub(r"[^\s,;]+", lambda m: plugin_file(r, m[0]), text)


def plugin_file(r: Redaction, text: str) -> str:
    """Return what the name or path of a library becomes: equal names are equal in NCCL_NET_PLUGIN and on the disk."""
    folder, slash, file = text.rpartition("/")
    versioned = re.compile(r"\.so(?:\.[0-9]{1,4})*$", re.ASCII)
    if versioned.sub("", file).lower() in words.SETTINGS:
        new = file
    elif m := re.fullmatch(r"(libnccl-net-)(.+)(\.so)", file):
        new = m[1] + _library(r, m[2]) + m[3]
    elif versioned.search(file):
        new = "lib" + r.path(file[3:]) if file.startswith("lib") else r.path(file)
    else:
        new = _other(r, file)
    return r.path(folder) + slash + new


def _numbers(r: Redaction, text: str) -> str:
    return re.sub(r"[^\s,;|()\-]+", lambda m: m[0] if re.fullmatch("x?[0-9]{1,10}", m[0]) else _other(r, m[0]), text)


def _locale(r: Redaction, text: str) -> str:
    known = r"(?:C|POSIX|[a-z]{2,3}(?:_[A-Z]{2})?)(?:\.(?:UTF-?8|utf-?8|ISO-?8859-?[0-9]{1,2}))?"
    return text if re.fullmatch(known, text) else r.unknown(text)


def _names_of_settings(r: Redaction, text: str) -> str:
    return re.sub(r"[^\s,]+", lambda m: m[0] if lookup(m[0]) or m[0] == "ALL" else r.unknown(m[0]), text)


def _job(r: Redaction, text: str) -> str:
    return r.number(text) if re.fullmatch("[0-9]{1,12}", text) else r.unknown(text)


SWITCH = Form("numbers and switches", _switch)
WORDS = Form("known words and numbers", listed(words.SETTINGS | _LEVELS))
DEVICES = Form("names of interfaces and RDMA devices", _devices)
GPUS = Form("numbers and UUIDs of GPUs, the latter replaced", _gpus)
ENDPOINT = Form("a host and a port, the host replaced", _host_and_port)
HOSTS = Form("names of hosts, replaced", _hosts)
FILE = Form("a path; names in it that are not public are replaced", _path)
FOLDERS = Form(
    "folders; names in them that are not public are replaced",
    lambda r, t: ":".join(_path(r, f) if f else "" for f in t.split(":")),
)
LIBRARY = Form("names of public libraries; others are replaced", _library)
NUMBERS = Form("numbers", _numbers)
JOB = Form("the number of a job, replaced", _job)
LOCALE = Form("a locale", _locale)

_TEXTS: dict[str, Form] = {
    **dict.fromkeys("NCCL_COMM_ID NCCL_RAS_ADDR".split(), ENDPOINT),
    **dict.fromkeys("NCCL_IB_HCA NCCL_SOCKET_IFNAME NCCL_OOB_NET_IFNAME NCCL_NET_FORCE_MERGE".split(), DEVICES),
    **dict.fromkeys("NCCL_NET NCCL_IBVERBS_LIB".split(), LIBRARY),
    **dict.fromkeys("NCCL_RINGS NCCL_THREAD_THRESHOLDS NCCL_PROXY_CPUSET".split(), NUMBERS),
    "NCCL_IB_ADDR_RANGE": HOST,
    "NCCL_HOSTID": HOST,
    "NCCL_DEBUG_TIMESTAMP_FORMAT": exactly("a format of times", r"(?:%[0-9]?[A-Za-z%]|[\[\]():_\-. /,])*"),
    "NCCL_NO_CACHE": Form("names of settings", _names_of_settings),
    "NCCL_CTA_POLICY": Form("", listed(frozenset("default efficiency zero".split()))),
}
"""Settings of NCCL whose value is a text."""
_OTHERS: dict[str, Form] = {
    **dict.fromkeys("MASTER_ADDR KUBERNETES_SERVICE_HOST SLURMD_NODENAME".split(), HOST),
    **dict.fromkeys("SLURM_STEP_NODELIST SLURM_JOB_NODELIST".split(), HOSTS),
    **dict.fromkeys(
        "CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES GPU_DEVICE_ORDINAL "
        "SLURM_JOB_GPUS SLURM_STEP_GPUS".split(),
        GPUS,
    ),
    **dict.fromkeys("SLURM_TASKS_PER_NODE SLURM_STEP_TASKS_PER_NODE OMP_NUM_THREADS".split(), NUMBERS),
    **dict.fromkeys(
        "UCX_NET_DEVICES NVSHMEM_HCA_LIST NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME TP_SOCKET_IFNAME HOROVOD_GLOO_IFACE "
        "GLOO_SOCKET_IFNAME OMPI_MCA_btl_tcp_if_include OMPI_MCA_btl_tcp_if_exclude "
        "OMPI_MCA_oob_tcp_if_include OMPI_MCA_oob_tcp_if_exclude OMPI_MCA_pml_ucx_devices".split(),
        DEVICES,
    ),
    **dict.fromkeys("LANG LC_ALL".split(), LOCALE),
    **dict.fromkeys("CUDA_MPS_PIPE_DIRECTORY MSCCL_XML_FILES MSCCL_ALGO_DIR".split(), FILE),
    "LD_LIBRARY_PATH": FOLDERS,
    "SLURM_JOB_ID": JOB,
    "NCCL_VERSION": VERSION,
}


@functools.cache
def form_of(name: str) -> Form:
    """Return what a snapshot may hold of a variable's value."""
    if name in _OTHERS or name in _TEXTS:
        return _OTHERS.get(name) or _TEXTS[name]
    s = lookup(name)
    if s is None:
        return WORDS
    if s.reads == "text":
        return LIBRARY if name.endswith("_PLUGIN") else FILE if s.type == "path" else WORDS
    if s.reads in ("integer", "switch", "flag", "level"):
        return SWITCH
    return Form("known words and numbers", listed(words.SETTINGS | _ALGORITHMS | {w.lower() for w in s.words}))


@functools.cache
def _parts() -> frozenset[str]:
    """The parts of names that are public, in lower case."""
    return words.NAMES | {part.lower() for name in settings() for part in name.split("_")}


def name_of(r: Redaction, name: str) -> str:
    """Return what the name of a variable becomes: it stays where all of its parts are public.

    So does what looks like a misspelt name of NCCL's: that it is one is a finding.
    """
    if known_variable(name) or lookup(name) or foreign_reader(name):
        return name
    if all(p.lower() in _parts() or (is_digits(p) and len(p) < 3) for p in name.split("_") if p):
        return name
    if name.startswith("NCCL_") and nearest(name):
        return name
    prefix = next((p for p in VARIABLE_PREFIXES if name.startswith(p)), "")
    return f"{prefix}{REDACTED.upper()}_{r.map.count('variable', name)}"


def environment(r: Redaction, answer: Answer) -> Answer:
    """Return what a snapshot holds of the environment."""
    if not isinstance(answer, dict):
        return scalar(r, answer)
    out = {}
    for name in sorted(answer):
        r.kind = name
        out[name_of(r, name)] = form_of(name)(r, str(answer[name])) or ""
    return out


def _line(r: Redaction, text: str) -> str | None:
    m = re.fullmatch(r"([0-9]{0,9}\s*)([A-Za-z_][A-Za-z0-9_]*)(\s*=)(.*)", text, re.DOTALL)
    if m is None:
        return None
    r.kind = m[2]
    return m[1] + name_of(r, m[2]) + m[3] + (form_of(m[2])(r, m[4]) or "")


SETTING_LINE = Form("settings of NCCL; of each value what its form allows", _line)
_KERNEL_NUMBER = re.compile(
    r"0x[0-9a-fA-F]{1,12}|[0-9]{1,12}[kKmMgG]?|[0-9]{1,5}-[0-9]{1,5}(?:[:/][0-9]{1,5}){0,2}", re.ASCII
)
_PCI_ID = re.compile(r"[0-9a-fA-F]{4}:[0-9a-fA-F]{4}|[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]", re.ASCII)


def _kernel_option(r: Redaction, text: str) -> str:
    """`pci=realloc,noats`, `vfio-pci.ids=10de:2330`: known words, numbers and PCI ids."""

    def one(m: re.Match[str]) -> str:
        word = m[0]
        known = word.lower() in words.KERNEL or word.lower() in words.DRIVERS or word.lower() in words.REGISTRY
        return word if known or _KERNEL_NUMBER.fullmatch(word) else _other(r, word)

    def between(m: re.Match[str]) -> str:
        if _PCI_ID.fullmatch(m[0]):
            return m[0]
        if (new := r.identifier(m[0])) is not None:
            return new
        return r.unknown(m[0]) if re.search(_QUAD, m[0]) else re.sub("[^.:]+", one, m[0])

    return re.sub(r"[^\s,;=@\"'!]+", between, text)


_QUAD = r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}"
"""An IPv4 address within a word."""
KERNEL_OPTION = Form("options of the kernel that matter, with known words and numbers", _kernel_option)
