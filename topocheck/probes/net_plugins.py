"""NCCL's external network plugins, looked for as the loader does (ld.so(8)): no library is loaded.

NCCL opens `libnccl-net.so`, or what NCCL_NET_PLUGIN names: a path, a library's file name, or NAME of
`libnccl-net-NAME.so` (src/plugin/plugin_open.cc). A name without a slash is looked for in the folders of
LD_LIBRARY_PATH, then in those of ld.so.conf, then in the system's.
"""

from __future__ import annotations

from topocheck.host.base import Host, HostError
from topocheck.model.base import Missing, is_lost

DEFAULT_PLUGIN = "libnccl-net.so"
SYSTEM_FOLDERS = (
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
    "/usr/local/lib",
)
LOADER_CONF = "/etc/ld.so.conf.d"
INSTALLED_FOLDERS = (
    "/opt/amazon/ofi-nccl/lib",
    "/opt/amazon/ofi-nccl/lib64",
    "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu",
    "/opt/amazon/ofi-nccl/lib/aarch64-linux-gnu",
    "/opt/aws-ofi-nccl/lib",
    "/opt/aws-ofi-nccl/install/lib",
    "/usr/local/gib/lib64",
    "/usr/local/tcpx/lib64",
    "/var/lib/tcpxo/lib64",
    "/var/lib/fastrak/lib64",
    "/opt/hpcx/nccl_rdma_sharp_plugin/lib",
    "/opt/hpcx/nccl_spectrum-x_plugin/lib",
)
"""Where the packages and images of AWS, Google Cloud and HPC-X put their plugins."""
_MAX_FOLDERS = 48


def plugin_names(asked: str) -> tuple[str, ...]:
    """Return the file names, or paths, that NCCL opens for a value of NCCL_NET_PLUGIN; empty: `none` asks for none."""
    if asked.strip().lower() == "none":
        return ()
    names = []
    for word in asked.split(","):
        name = word.strip()
        if not name:
            continue
        names.append(name)
        if "/" not in name and not (name.startswith("lib") and name.endswith(".so")):
            names.append(f"libnccl-net-{name}.so")
    return tuple(names) or (DEFAULT_PLUGIN,)


def loader_folders(host: Host) -> tuple[list[str], Missing | None]:
    """Return the folders of the loader in its order, and why some of them are not known.

    Entries that are not absolute are left out.
    """
    folders = []
    lost: Missing | None = None
    try:
        folders += host.environ().get("LD_LIBRARY_PATH", "").split(":")
    except HostError as e:
        lost = e.missing()
    try:
        for name in sorted(host.listdir(LOADER_CONF))[:_MAX_FOLDERS]:
            if name.endswith(".conf"):
                folders += [s.strip() for s in host.read_text(f"{LOADER_CONF}/{name}", 1 << 14).splitlines()]
    except HostError as e:
        lost = e.missing() if is_lost(e.missing()) else lost
    folders += SYSTEM_FOLDERS
    absolute = (f.rstrip("/") for f in folders if f.startswith("/"))
    return list(dict.fromkeys(absolute))[:_MAX_FOLDERS], lost


def read(host: Host, asked: str) -> tuple[tuple[str, ...] | Missing, tuple[str, ...]]:
    """Return the plugins that the loader finds, and those that are installed where it does not look.

    Args:
        host: answers.
        asked: value of NCCL_NET_PLUGIN, empty where it is not set.

    The first is Missing where none was found and a folder could not be looked into.
    """
    found, elsewhere = [], []
    folders, lost = loader_folders(host)
    for name in dict.fromkeys((*plugin_names(asked), DEFAULT_PLUGIN)):
        for path in [name] if name.startswith("/") else [f"{folder}/{name}" for folder in folders if "/" not in name]:
            try:
                if host.access(path, "r"):
                    found.append(path)
            except HostError as e:
                lost = e.missing() if is_lost(e.missing()) else lost
    for folder in INSTALLED_FOLDERS:
        path = f"{folder}/{DEFAULT_PLUGIN}"
        try:
            if path not in found and host.access(path, "r"):
                elsewhere.append(path)
        except HostError:
            continue
    return (tuple(found) if found or lost is None else lost), tuple(elsewhere)
