"""Versions of what a job runs on, without importing or loading any of it.

`read` looks at files only; `read_commands` asks programs, in its own group, since a program may hang on a dead
file system or a lost daemon. Neither reaches for the network: Slurm's `sinfo` looks its controller up in the DNS
where it has no configuration file, so it is only asked where there is one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from topocheck.host.base import Host, HostError
from topocheck.model.base import ABSENT, UNSUPPORTED, Missing, Reason, unparsable
from topocheck.model.system import SoftwareFacts
from topocheck.probes import net_plugins

# Distribution (PEP 503 name, with _ for -) -> name in `versions`.
DISTRIBUTIONS = {
    "torch": "torch",
    "nvidia_nccl_cu11": "nccl",
    "nvidia_nccl_cu12": "nccl",
    "nvidia_nccl_cu13": "nccl",
    "nvidia_ml_py": "nvidia_ml_py",
    "cuda_bindings": "cuda_bindings",
    "mpi4py": "mpi4py",
    "deepspeed": "deepspeed",
    "megatron_core": "megatron_core",
    "tensorflow": "tensorflow",
    "jax": "jax",
    "mindspore": "mindspore",
}
# Where distributions and NVIDIA's packages put the library; the link's target carries the version.
NCCL_LINKS = (
    "/usr/lib/x86_64-linux-gnu/libnccl.so.2",
    "/usr/lib/aarch64-linux-gnu/libnccl.so.2",
    "/usr/lib64/libnccl.so.2",
    "/usr/local/lib/libnccl.so.2",
    "/usr/local/nccl/lib/libnccl.so.2",
    "/usr/local/cuda/lib64/libnccl.so.2",
)
SLURM_CONF = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/opt/slurm/etc/slurm.conf")

_METADATA = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*?)-([0-9][^-/]*)(?:-py[0-9.]+)?\.(?:dist-info|egg-info)")
_NUMBER = r"[0-9]+(?:\.[0-9]+)+[\w.+\-]*"
_OPEN_MPI = r"\((?:Open MPI|OpenRTE)\)\s+(\S+)"
_INTEL_MPI = r"(?s)Intel\(R\) MPI Library.*?Version\s+(\S+)(?:\s+Update\s+([0-9]+))?"
_HYDRA = r"(?is)HYDRA build details:.*?Version:\s+(\S+)"
_TIMEOUT_S = 2
_MAX_FOLDERS = 32


def parse_distributions(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return name in `versions` -> distribution -> version, from the names in one `site-packages`."""
    found: dict[str, dict[str, str]] = {}
    for name in names:
        if m := _METADATA.fullmatch(name):
            distribution = re.sub(r"[-_.]+", "_", m[1]).lower()
            if distribution in DISTRIBUTIONS:
                found.setdefault(DISTRIBUTIONS[distribution], {})[distribution] = m[2]
    return found


def parse_nccl_file(name: str) -> str | Missing:
    """Return the version in the name of a library file: `libnccl.so.2.21.5` -> `2.21.5`."""
    m = re.search(r"libnccl\.so\.([0-9]+\.[0-9]+\.[0-9]+)$", name)
    return m[1] if m else unparsable(name)


def parse_cuda_toolkit(text: str) -> str | Missing:
    """Return the toolkit's version from its version.json, or from the version.txt of 11.0 and older."""
    if m := re.fullmatch(r"\s*CUDA Version ([0-9][\w.]*)\s*", text):
        return m[1]
    try:
        return msgspec.json.decode(text, type=dict[str, dict[str, str]])["cuda"]["version"]
    except (msgspec.DecodeError, KeyError, UnicodeError, RecursionError):
        return unparsable(text)


def parse_torch_version(text: str) -> dict[str, str]:
    """Return `torch` and `torch_cuda` (CUDA that torch was built for) from torch's version.py."""
    out = {}
    for key, name in (("torch", "__version__"), ("torch_cuda", "cuda")):
        if m := re.search(rf"^{name}\s*(?::[^=\n]*)?=\s*['\"]([^'\"\n]+)['\"]", text, re.MULTILINE):
            out[key] = m[1]
    return out


def parse_mpirun(text: str) -> tuple[str, str] | None:
    """Return (implementation, version) from `mpirun --version`, or None for an unknown one."""
    if m := re.search(_OPEN_MPI, text):
        return "Open MPI", m[1]
    if m := re.search(_INTEL_MPI, text):
        return "Intel MPI", f"{m[1]} update {m[2]}" if m[2] else m[1]
    if m := re.search(_HYDRA, text):
        return ("MVAPICH" if "mvapich" in text.lower() else "MPICH"), m[1]
    return None


def parse_ompi_cuda(text: str) -> bool | Missing:
    """Return whether Open MPI was built CUDA-aware, from `ompi_info --parsable`."""
    m = re.search(r"^mca:\w+:base:param:\w*built_with_cuda_support:value:(true|false)\s*$", text, re.MULTILINE)
    return m[1] == "true" if m else UNSUPPORTED


def parse_version_number(text: str) -> str | Missing:
    """Return the first dotted number of what a program printed as its version."""
    m = re.search(_NUMBER, text)
    return m[0].rstrip(".:-") if m else unparsable(text)


class _Versions:
    """Collects versions with where they were found."""

    def __init__(self) -> None:
        self.versions: dict[str, str] = {}
        self.raw: dict[str, str] = {}

    def add(self, name: str, version: str | Missing, where: str, said: str) -> None:
        self.raw[where] = said.strip()[:400]
        if not isinstance(version, Missing):
            self.versions.setdefault(name, version)


def _python_packages(host: Host, out: _Versions) -> None:
    process = host.process()
    if process.get("python_version"):
        out.add("python", str(process["python_version"]), "python", str(process["python_version"]))
    # Other entries of the path (the working folder, the standard library) hold no distributions of interest.
    folders = [
        p.rstrip("/")
        for p in map(str, process.get("sys_path") or ())
        if p.startswith("/") and p.rstrip("/").endswith(("/site-packages", "/dist-packages"))
    ]
    for folder in host.at_most(list(dict.fromkeys(folders)), _MAX_FOLDERS, "folders of Python packages"):
        try:
            found = parse_distributions(host.listdir(folder))
        except HostError:
            continue
        if "torch" in found and "torch" not in out.versions:
            _torch(host, out, folder)
        for name, versions in found.items():
            if name not in out.versions:
                distribution = _preferred(versions, out.versions.get("torch_cuda", ""))
                where = f"{folder}/{distribution}-{versions[distribution]}.dist-info"
                out.add(name, versions[distribution], where, versions[distribution])


def _preferred(versions: dict[str, str], torch_cuda: str) -> str:
    """Return which of several distributions of one thing counts: that of torch's CUDA major, else the newest."""
    major = torch_cuda.split(".")[0]
    return next((d for d in versions if major and d.endswith(f"_cu{major}")), max(versions))


def _torch(host: Host, out: _Versions, folder: str) -> None:
    path = f"{folder}/torch/version.py"
    try:
        text = host.read_text(path, 4096)
    except HostError:
        return
    for name, version in parse_torch_version(text).items():
        out.add(name, version, path, text)


def _nccl_system(host: Host, out: _Versions) -> None:
    for link in NCCL_LINKS:
        try:
            target = host.readlink(link)
        except HostError:
            continue
        out.add("nccl_system", parse_nccl_file(target), link, target)


def _first_file(host: Host, out: _Versions, name: str, paths: Sequence[str], cuda: bool = False) -> None:
    for path in paths:
        try:
            text = host.read_text(path, 1 << 16)
        except HostError:
            continue
        out.add(name, parse_cuda_toolkit(text) if cuda else text.strip() or ABSENT, path, text)
        return


def read(host: Host) -> SoftwareFacts:
    """Read versions from files: Python packages, NCCL, CUDA toolkit, driver, and the mlx5 driver."""
    out = _Versions()
    try:
        _python_packages(host, out)
    except HostError as e:
        out.raw["python"] = f"!{e}"
    _nccl_system(host, out)
    _first_file(host, out, "cuda_toolkit", ("/usr/local/cuda/version.json", "/usr/local/cuda/version.txt"), cuda=True)
    _first_file(host, out, "driver", ("/sys/module/nvidia/version",))
    # Only drivers of NVIDIA's own network package state a version; the kernel's own mlx5_core has none since 5.11.
    _first_file(host, out, "mlx5_core", ("/sys/module/mlx5_core/version",))
    plugins, elsewhere = net_plugins.read(host, _asked_plugin(host))
    out.raw["network plugins"] = str(plugins) if isinstance(plugins, Missing) else " ".join(plugins) or "none"
    return SoftwareFacts(raw=out.raw, versions=out.versions, network_plugins=plugins, plugins_elsewhere=elsewhere)


def _asked_plugin(host: Host) -> str:
    """Return NCCL_NET_PLUGIN of the environment; the files of NCCL seldom set it, and the default is tried too."""
    try:
        return host.environ().get("NCCL_NET_PLUGIN", "")
    except HostError:
        return ""


def _ask(host: Host, out: _Versions, name: str, *commands: Sequence[str]) -> None:
    """Ask the first of several commands that is there for a version."""
    for argv in commands:
        text = _output(host, out, argv)
        if text is not None:
            out.add(name, parse_version_number(text), " ".join(argv), text)
            return


def _output(host: Host, out: _Versions, argv: Sequence[str]) -> str | None:
    """Return what a command printed; None where it is absent, failed (kept in `raw`), or printed nothing."""
    try:
        result = host.run(argv, timeout_s=_TIMEOUT_S)
    except HostError as e:
        if e.reason is not Reason.ABSENT:
            out.raw[" ".join(argv)] = f"!{e}"
        return None
    text = result.stdout or result.stderr
    if result.rc != 0 or not text.strip():
        out.raw[" ".join(argv)] = f"!unsupported: exit status {result.rc}"
        return None
    return text


def _slurm(host: Host, out: _Versions) -> None:
    commands = [("slurmd", "-V"), ("/usr/sbin/slurmd", "-V")]
    try:
        if any(host.access(path, "r") for path in SLURM_CONF):
            commands.append(("sinfo", "--version"))
    except HostError:
        pass
    _ask(host, out, "slurm", *commands)


def _in_open_mpi_job(host: Host) -> bool:
    """Tell whether this process is a rank of Open MPI: `ompi_info` takes longer than the rest of a report."""
    try:
        return any(name.startswith("OMPI_COMM_WORLD_") for name in host.environ())
    except HostError:
        return False


def read_commands(host: Host) -> SoftwareFacts:
    """Ask installed programs for their versions; those that are not there are left out."""
    out = _Versions()
    implementation: str | Missing = ABSENT
    cuda_aware: bool | Missing = ABSENT
    if (text := _output(host, out, ("mpirun", "--version"))) is not None:
        found = parse_mpirun(text)
        implementation = found[0] if found else unparsable(text)
        out.add("mpi", found[1] if found else unparsable(text), "mpirun --version", text)
        cuda_aware = UNSUPPORTED
        if implementation == "Open MPI" and not _in_open_mpi_job(host):
            cuda_aware = Missing(Reason.NOT_RECORDED, "asked inside an Open MPI job only")
        elif implementation == "Open MPI":
            argv = ("ompi_info", "--parsable", "--param", "mpi", "all", "--level", "9")
            if (info := _output(host, out, argv)) is not None:
                cuda_aware = parse_ompi_cuda(info)
                line = next((x for x in info.splitlines() if "built_with_cuda_support:value" in x), "")
                out.raw["ompi_info"] = line
    _slurm(host, out)
    _ask(host, out, "fabric_manager", ("nv-fabricmanager", "--version"))
    _ask(host, out, "imex", ("nvidia-imex", "--version"))
    _ask(host, out, "dcgm", ("dcgmi", "--version"))
    _ask(host, out, "ofed", ("ofed_info", "-s"))
    _ask(host, out, "ucx", ("ucx_info", "-v"))
    _ask(host, out, "hwloc", ("lstopo-no-graphics", "--version"), ("hwloc-info", "--version"))
    return SoftwareFacts(
        raw=out.raw, versions=out.versions, mpi_cuda_aware=cuda_aware, mpi_implementation=implementation
    )
