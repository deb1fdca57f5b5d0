"""What of the machine's answers may enter topocheck at all. Everything else is in no report and no snapshot.

Kept in one place because it is a promise. Two kinds of things stay outside, whether or not identifiers are kept:
secrets, and what no probe reads: builders, other users' files, service names, the rest of a command's output.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from topocheck.model.base import REDACTED

Answer = Any
Filter = Callable[[Answer], Answer]

VARIABLE_PREFIXES = ("NCCL_", "TORCH_NCCL_", "UCX_", "RCCL_", "GLOO_", "OMPI_COMM_WORLD_", "OMPI_MCA_")
VARIABLES = frozenset(
    """
    CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER NVIDIA_VISIBLE_DEVICES NVIDIA_DRIVER_CAPABILITIES GPU_DEVICE_ORDINAL
    ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES CUDA_LAUNCH_BLOCKING CUDA_MPS_PIPE_DIRECTORY OMP_NUM_THREADS
    PYTORCH_CUDA_ALLOC_CONF TORCH_FR_BUFFER_SIZE TORCH_DISTRIBUTED_DEBUG
    RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT
    PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS PMIX_RANK
    SLURM_JOB_ID SLURM_PROCID SLURM_NTASKS SLURM_LOCALID SLURM_NODEID SLURM_NNODES SLURM_JOB_NUM_NODES
    SLURM_STEP_NODELIST SLURM_JOB_NODELIST SLURM_STEP_NUM_NODES SLURM_STEP_NUM_TASKS SLURM_TASKS_PER_NODE
    SLURM_STEP_TASKS_PER_NODE SLURM_JOB_GPUS SLURM_STEP_GPUS SLURM_GPUS_ON_NODE SLURM_CPU_BIND SLURMD_NODENAME
    SLURM_JOB_EXCLUSIVE SLURM_SCRIPT_CONTEXT SLURM_NODE_IS_HEALTHY
    LD_LIBRARY_PATH KUBERNETES_SERVICE_HOST container LANG LC_ALL NO_COLOR
    GGML_CUDA_P2P GGML_CUDA_ENABLE_UNIFIED_MEMORY VLLM_SKIP_P2P_CHECK VLLM_DISABLE_PYNCCL SGLANG_SKIP_P2P_CHECK
    NVSHMEM_DISABLE_P2P NVSHMEM_DISABLE_NVLS NVSHMEM_HCA_LIST NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME MPICH_GPU_IPC_ENABLED
    MPICH_GPU_SUPPORT_ENABLED MPIR_CVAR_ENABLE_GPU MV2_USE_CUDA MV2_CUDA_IPC MV2_USE_GPUDIRECT FI_PROVIDER
    TP_SOCKET_IFNAME HOROVOD_GLOO_IFACE TORCH_SYMM_MEM_DISABLE_MULTICAST MSCCL_XML_FILES MSCCL_ALGO_DIR
    DASK_DISTRIBUTED__COMM__UCX__NVLINK DASK_DISTRIBUTED__COMM__UCX__INFINIBAND
    """.split()
)

_KERNEL_OPTIONS = (
    "iommu",
    "intel_iommu",
    "amd_iommu",
    "arm-smmu",
    "pci",
    "pcie_aspm",
    "pcie_ports",
    "pcie_acs_override",
    "vfio",
    "nvidia",
    "nouveau",
    "rd.driver.blacklist",
    "modprobe.blacklist",
    "module_blacklist",
    "numa",
    "numa_balancing",
    "isolcpus",
    "nohz_full",
    "hugepages",
    "default_hugepagesz",
    "transparent_hugepage",
    "mem_encrypt",
    "cgroup_enable",
    "systemd.unified_cgroup_hierarchy",
)


KNOWN = frozenset(
    """
    UCX_TLS UCX_NET_DEVICES UCX_IB_GPU_DIRECT_RDMA UCX_RNDV_SCHEME UCX_RNDV_THRESH UCX_MEMTYPE_CACHE UCX_LOG_LEVEL
    UCX_IB_GID_INDEX UCX_IB_SL UCX_IB_TRAFFIC_CLASS UCX_IB_PCI_RELAXED_ORDERING UCX_MAX_RNDV_RAILS UCX_MAX_EAGER_RAILS
    UCX_WARN_UNUSED_ENV_VARS UCX_CUDA_COPY_MAX_REG_RATIO UCX_PROTO_ENABLE UCX_UNIFIED_MODE UCX_MODULES UCX_PROTOS
    OMPI_MCA_btl OMPI_MCA_pml OMPI_MCA_osc OMPI_MCA_coll OMPI_MCA_mtl OMPI_MCA_btl_tcp_if_include
    OMPI_MCA_btl_tcp_if_exclude OMPI_MCA_oob_tcp_if_include OMPI_MCA_oob_tcp_if_exclude OMPI_MCA_plm OMPI_MCA_rmaps
    OMPI_MCA_btl_openib_allow_ib OMPI_MCA_opal_cuda_support OMPI_MCA_coll_hcoll_enable OMPI_MCA_pml_ucx_tls
    OMPI_MCA_pml_ucx_devices OMPI_MCA_hwloc_base_binding_policy OMPI_MCA_rmaps_base_mapping_policy
    OMPI_MCA_btl_smcuda_use_cuda_ipc RCCL_MSCCL_ENABLE GLOO_SOCKET_IFNAME GLOO_DEVICE_TRANSPORT
    """.split()
)
"""Settings of libraries other than NCCL and PyTorch of which the value may be looked at. Of the others only numbers
and switches may: Open MPI hands addresses, users and keys to its ranks as OMPI_MCA_*."""
# Patterns are compiled where they are first used (re keeps them): a live report loads this before it asks anything.
_SWITCH = (
    r"(?i)\s*[+-]?[0-9]{1,12}(?:\.[0-9]{1,6})?\s*(?:[kmgt]i?b?|us|ms|s|m|inf)?\s*"
    r"|true|false|yes|no|on|off|y|n|t|f|try|auto|inf|none|default|enabled?|disabled?"
)
_SECRET_NAME = r"(?i)token|secret|passw|passphrase|credential|api_?key|private|auth(?!or)|cookie|jwt|(?:^|_)key(?:_|$)"
# Each begins where a word does, and is bounded: a value may be long.
_SECRET_VALUE = (
    r"(?i)(?P<name>(?:token|secret|passw(?:or)?d|passphrase|credential|api_?key|auth|signature|\bsig)\w{0,20}\s{0,9}[=:]\s{0,9})"
    r"[^\s&;,]+|(?P<scheme>(?<![a-z0-9+.\-])(?:[a-z][a-z0-9+.\-]{0,20}:)?//)[^\s/@]*@|(?P<query>(?<=[^\s?])\?[^\s?]*=\S*)"
    r"|(?P<key>(?<![\w+/=-])(?:gh[pousr]_|github_pat_|glpat-|hf_|sk-|xox[a-z]-|AKIA|ASIA|eyJ|nvapi-)[\w.+/=-]{8,})"
)
_WORD = "[0-9A-Za-z+=]"
_LONG = rf"(?<!{_WORD})(?!0x[0-9A-Fa-f]+(?!{_WORD}))(?={_WORD}*[0-9])(?={_WORD}*[A-Za-z]){_WORD}{{20,}}(?!{_WORD})"
"""A word of twenty letters and digits is a key; names have marks between their words, and UUIDs have dashes."""


def variable_allowed(name: str) -> bool:
    """Tell whether a variable of the environment may be looked at and recorded."""
    return name in VARIABLES or name.startswith(VARIABLE_PREFIXES)


def known_variable(name: str) -> bool:
    """Tell whether a variable is one of those named here, so that its name says nothing of the machine."""
    return name in VARIABLES or name in KNOWN


def value_allowed(name: str, value: str) -> str:
    """Return what may be looked at of the value of an allowed variable; `redacted` stands for secrets.

    A value that is a path stays whole: what it leads to is to be read.
    """
    if re.fullmatch(_SWITCH, value):
        return value
    foreign = name.startswith(("UCX_", "OMPI_MCA_", "GLOO_", "RCCL_")) and name not in KNOWN
    if value and (foreign or re.search(_SECRET_NAME, name)):
        return REDACTED
    if value.startswith("/") and "://" not in value and "@" not in value:
        return value
    return re.sub(_LONG, REDACTED, re.sub(_SECRET_VALUE, _without_secret, value))


def _without_secret(m: re.Match[str]) -> str:
    if m["name"] is not None:
        return m["name"] + REDACTED
    if m["scheme"] is not None:
        return f"{m['scheme']}{REDACTED}@"
    return f"?{REDACTED}" if m["query"] is not None else REDACTED


def kernel_option_allowed(option: str) -> bool:
    """Tell whether one word of the kernel's command line may be looked at and recorded."""
    name = option.split("=", 1)[0]
    return any(name == o or name.startswith((o + ".", o + "_")) for o in _KERNEL_OPTIONS)


def _settings(lines: Answer) -> Answer:
    """Keep of lines `number<TAB>NAME=VALUE` what may be looked at of the value."""
    if not isinstance(lines, list):
        return lines
    out = []
    for line in lines:
        m = re.fullmatch(r"([0-9]*\s*(\w+)\s*=)(.*?)(\s*)", line, re.DOTALL) if isinstance(line, str) else None
        if m and variable_allowed(m[2]):
            out.append(m[1] + value_allowed(m[2], m[3]) + m[4])
    return out


def _environment(answer: Answer) -> Answer:
    if not isinstance(answer, dict):
        return answer
    return {k: value_allowed(k, str(v)) for k, v in answer.items() if variable_allowed(k)}


def _options(answer: Answer) -> Answer:
    return [re.sub(_SECRET_VALUE, _without_secret, o) for o in answer] if _is_texts(answer) else answer


def _log(answer: Answer) -> Answer:
    """Keep of the kernel's log what topocheck.host.live.kmsg takes of it."""
    if not _is_texts(answer):
        return answer
    from topocheck.host.live.kmsg import of_interest

    return [line for text in answer if (line := of_interest(text)) is not None]


def _is_texts(answer: Answer) -> bool:
    return isinstance(answer, list) and all(isinstance(a, str) for a in answer)


def _names(pattern: str) -> Filter:
    """Return what keeps only those names of a folder that are of a pattern."""
    return lambda answer: [a for a in answer if re.fullmatch(pattern, a, re.DOTALL)] if _is_texts(answer) else answer


def _of_text(keep: Callable[[str], str]) -> Filter:
    """Return what applies a function to a text or to bytes that are text."""

    def apply(answer: Answer) -> Answer:
        if isinstance(answer, bytes):
            return keep(answer.decode("utf-8", "replace")).encode()
        return keep(answer) if isinstance(answer, str) else answer

    return apply


def _found(pattern: str) -> Filter:
    """Return what keeps of a text only the first match of a pattern."""

    def keep(text: str) -> str:
        m = re.search(pattern, text, re.ASCII)
        return m[0] if m else ""

    return _of_text(keep)


def _lines(pattern: str) -> Filter:
    """Return what keeps of a text the lines that begin with a pattern, as far as the pattern goes."""

    def keep(text: str) -> str:
        matches = (re.match(pattern, line, re.ASCII) for line in text.split("\n"))
        return "".join(f"{m[0]}\n" for m in matches if m)

    return _of_text(keep)


def _output(keep: Filter) -> Filter:
    """Return what applies a filter to both streams of a command."""

    def apply(answer: Answer) -> Answer:
        if not isinstance(answer, dict):
            return answer
        return {k: keep(v) if k in ("stdout", "stderr") else v for k, v in answer.items()}

    return apply


def _toolkit(answer: Answer) -> Answer:
    """Keep of the CUDA toolkit's version.json the one version that is asked for."""
    if not isinstance(answer, bytes):
        return answer
    try:
        version = msgspec.json.decode(answer, type=dict[str, dict[str, Any]])["cuda"]["version"]
    except (msgspec.DecodeError, KeyError, UnicodeError, RecursionError):
        return b""
    return msgspec.json.encode({"cuda": {"version": str(version)}})


def _kernel(text: str) -> str:
    """Keep of /proc/version the release, and what marks a sandbox; not who built it, and when."""
    if text.startswith(_GVISOR):
        return _GVISOR
    m = re.match(r"Linux version \S+", text)
    return (m[0] if m else "") + (" gVisor" if "gVisor" in text and not (m and "gVisor" in m[0]) else "")


_GVISOR = "Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016"


def _mpirun(text: str) -> str:
    """Keep of `mpirun --version` the name and the version; not how it was built."""
    m = re.search(r"\((?:Open MPI|OpenRTE)\)\s+\S+", text)
    m = m or re.search(r"(?s)(Intel\(R\) MPI Library).*?(Version\s+\S+(?:\s+Update\s+[0-9]+)?)", text)
    m = m or re.search(r"(?is)(HYDRA build details:).*?(Version:\s+\S+)", text)
    if m is None:
        return ""
    return ("MVAPICH " if "mvapich" in text.lower() else "") + " ".join(m.groups() or (m[0],))


def _process(answer: Answer) -> Answer:
    """Keep of the module path the folders of packages: others say where a user works."""
    if not isinstance(answer, dict) or not _is_texts(answer.get("sys_path")):
        return answer
    folders = [p for p in answer["sys_path"] if p.rstrip("/").endswith(("/site-packages", "/dist-packages"))]
    return answer | {"sys_path": folders}


_CPU = "processor|vendor_id|cpu family|model|model name|cpu cores|CPU implementer|CPU architecture|CPU part|cpu"


def _cpuinfo(text: str) -> str:
    """Keep what is asked of a processor; of its flags whether a hypervisor runs it."""
    out = []
    for line in text.split("\n"):
        m = re.match(rf"({_CPU}|flags|Features)\s*:", line)
        if m and m[1] in ("flags", "Features"):
            out.append(m[0] + (" hypervisor" if "hypervisor" in line[m.end() :].split() else ""))
        elif m:
            out.append(line)
    return "\n".join(out)


_VERSION = _output(_found(r"[0-9]+(?:\.[0-9]+)+[\w.+\-]*"))
_FILTERS: dict[str, Filter] = {
    "environ": _environment,
    "conf": _settings,
    "kernel_options": _options,
    "process": _process,
    "kernel_log": _log,
    "list:/dev": _names(r"nvidia(?:[0-9]{1,3}|ctl|-uvm)"),
    "list:/dev/shm": _names(r"nccl-.*"),
    "list:/sys/fs/cgroup/system.slice": _names(r"nvidia-[a-z]{1,20}\.service"),
    "read:/proc/version": _of_text(_kernel),
    "read:/proc/driver/nvidia/version": _lines(
        r"NVRM version: .*?[0-9]{3}\.[0-9]{2,3}(?:\.[0-9]{1,3})?(?![.0-9])(?:\s+Release Build)?"
    ),
    "read:/proc/cpuinfo": _of_text(_cpuinfo),
    "read:/usr/local/cuda/version.json": _toolkit,
    "read:/usr/local/cuda/version.txt": _found(r"CUDA Version [0-9][\w.]*"),
    "run:mpirun --version": _output(_of_text(_mpirun)),
    "run:ompi_info --parsable": _output(_lines(r"mca:\w+:base:param:\w*built_with_cuda_support:value:(?:true|false)")),
    "run:systemctl show": _output(_lines(r"(?:Id|LoadState|ActiveState)=[\w@.\-]*\r?$|\r?$")),
    **dict.fromkeys(("run:slurmd -V", "run:/usr/sbin/slurmd -V", "run:ofed_info -s", "run:ucx_info -v"), _VERSION),
    **{
        f"run:{program} --version": _VERSION
        for program in "sinfo nv-fabricmanager nvidia-imex dcgmi lstopo-no-graphics hwloc-info".split()
    },
}
"""Question, as far as it tells one from others -> what is kept of its answer."""
_PACKAGES = _names(r"[A-Za-z0-9][A-Za-z0-9._\-]*-[0-9][^/]*\.(?:dist-info|egg-info)")
_TORCH = _lines(r"(?:__version__|cuda)\s*(?::[^=\n]{0,40})?=\s*['\"][^'\"\n]{0,80}['\"]")

_VPD = _found("SMDL=SW_MNG")
"""Of a NIC's vital product data, which has its serial number, only whether it is one that manages NVSwitches."""


def kept(question: str, answer: Answer) -> Answer:
    """Return what may enter of an answer; an answer to which no rule applies is returned as it is."""
    kind, _, rest = question.partition(":")
    subject = rest.split("|")
    asked = " ".join(subject[1:3]) if kind == "run" else subject[0]
    keep = _FILTERS.get(kind) or _FILTERS.get(f"{kind}:{asked}")
    if keep is None and kind == "list" and subject[0].endswith(("/site-packages", "/dist-packages")):
        keep = _PACKAGES
    elif keep is None and kind == "read" and subject[0].endswith("/torch/version.py"):
        keep = _TORCH
    elif keep is None and kind == "read" and subject[0].endswith("/vpd"):
        keep = _VPD
    return answer if keep is None else keep(answer)
