"""Where NVML's library is, and which file it is: the name of the file is its version."""

from __future__ import annotations

import posixpath

from topocheck.host.base import Host, HostError

PATHS = tuple(
    f"{folder}/libnvidia-ml.so.1"
    for folder in (
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib/powerpc64le-linux-gnu",
        "/usr/lib64",
        "/usr/lib",
        "/usr/local/nvidia/lib64",  # containers of Google Kubernetes Engine
        "/usr/lib/wsl/lib",
        "/run/opengl-driver/lib",  # NixOS
    )
)


def read_libraries(host: Host, raw: dict[str, str]) -> dict[str, str]:
    """Return path -> name of the file that it leads to, for the paths at which distributions install it."""
    out: dict[str, str] = {}
    for path in PATHS:
        try:
            out[path] = raw[path] = posixpath.basename(host.realpath(path))
        except HostError:
            continue
    return out
