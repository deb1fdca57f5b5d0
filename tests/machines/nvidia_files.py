"""What the NVIDIA driver shows in /proc/driver/nvidia and /dev."""

from __future__ import annotations

from typing import Any

from tests.machines.description import Function
from tests.machines.nvml_answers import Nvml
from tests.machines.system_files import arch
from tests.machines.tree import Dir, File, Tree


def write(tree: Tree, nvml: Nvml, fs: list[Function], d: dict[str, Any]) -> dict[str, str]:
    """Write the files of a loaded driver, nothing where it is not loaded; return what commands print about it."""
    told = d.get("driver", {})
    if not told or told.get("state", "loaded") not in ("loaded", "LibRmVersionMismatch"):
        return {}
    loaded = told.get("module_version", told["version"])
    machine = arch(d.get("system", {}))
    flavour = (
        "Open Kernel Module for " + machine if told.get("flavor", "open") == "open" else machine + " Kernel Module"
    )
    at = "/proc/driver/nvidia"
    tree.put(
        f"{at}/version",
        f"NVRM version: NVIDIA UNIX {flavour}  {loaded}  Release Build  (build@host)\nGCC version:  gcc version 11.4.0",
    )
    params = {"EnableResizableBar": 0, "RegistryDwords": '""', "DmaRemapPeerMmio": 1, **told.get("params", {})}
    tree.put(f"{at}/params", "\n".join(f"{k}: {v}" for k, v in params.items()))
    license_ = "Dual MIT/GPL" if told.get("flavor", "open") == "open" else "NVIDIA"
    tree.put("/sys/module/nvidia/version", loaded)
    tree.put("/sys/module/nvidia/initstate", "live")
    for module in ("nvidia_uvm",):
        tree.put(f"/sys/module/{module}/initstate", "live")
    users = len(nvml.gpus)
    text = tree.entries.get("/proc/modules")
    before = text.data.decode() if isinstance(text, File) else ""
    own = (
        f"nvidia_uvm 1830912 0 - Live 0x0000000000000000\nnvidia 14299136 {users} nvidia_uvm, Live 0x0000000000000000\n"
    )
    tree.put("/proc/modules", File((own + before).encode()))
    tree.put(f"{at}/gpus", Dir())
    tree.put("/dev/nvidiactl", File(b"", kind="char", mode=0o666, rdev=195 << 8 | 255))
    tree.put("/dev/nvidia-uvm", File(b"", kind="char", mode=0o666, rdev=511 << 8))
    for g in nvml.gpus:
        minor = int(g.told.get("minor", g.index))
        name = g.function.address
        folder = f"{at}/gpus/{name}"
        tree.put(
            f"{folder}/information",
            f"Model: \t\t {g.told['name']}\nIRQ:   \t\t {41 + g.index}\nGPU UUID: \t {g.uuid}\n"
            f"Video BIOS: \t {g.told.get('vbios', '96.00.74.00.01').lower()}\nBus Type: \t PCIe\nDMA Size: \t 52 bits\n"
            f"DMA Mask: \t 0xfffffffffffff\nBus Location: \t {name}\nDevice Minor: \t {minor}\n"
            f"GPU Firmware: \t {loaded if told.get('flavor', 'open') == 'open' else 'N/A'}\nGPU Excluded:\t No",
        )
        if "gpu_numa_node" in g.told:
            tree.put(f"{folder}/numa_status", f"Node: {g.told['gpu_numa_node']}\nStatus: online")
        if g.told.get("device_file", True):
            tree.put(f"/dev/nvidia{minor}", File(b"", kind="char", mode=0o666, rdev=195 << 8 | minor))
    for i, _ in enumerate(
        f for f in fs if f.kind == "nvswitch" and f.options.get("driver", f.product.get("driver")) == "nvidia-nvswitch"
    ):
        tree.put(f"/dev/nvidia-nvswitch{i}", File(b"", kind="char", mode=0o666, rdev=510 << 8 | i))
    for i in range(int(told.get("imex_channels", 0))):
        tree.put(f"/dev/nvidia-caps-imex-channels/channel{i}", File(b"", kind="char", mode=0o666, rdev=508 << 8 | i))
    return {"modinfo -F license nvidia": license_ + "\n"}
