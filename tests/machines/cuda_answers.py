"""What the CUDA driver says on a described machine (host/live/cuda.py's shapes)."""

from __future__ import annotations

from typing import Any

from tests.machines.gpus import Gpu
from tests.machines.nvml_answers import Nvml
from topocheck.host.base import HostError
from topocheck.model.base import Reason


def _visible(order: list[Gpu], told: str) -> list[Gpu]:
    """Return what CUDA_VISIBLE_DEVICES leaves: numbers, UUIDs or their beginnings; the first bad entry ends it."""
    out: list[Gpu] = []
    for word in (w.strip() for w in told.split(",")):
        if word.isdigit() and int(word) < len(order):
            out.append(order[int(word)])
            continue
        hits = [g for g in order if word.startswith("GPU-") and g.uuid.startswith(word)]
        hits += [g for g in order for m in g.told.get("mig_devices", []) if isinstance(m, dict) and m["uuid"] == word]
        if len(hits) != 1:
            break
        out += hits
    return out


class Cuda:
    """The CUDA driver on the same machine (host/live/cuda.py's shapes). `[cuda]` overrides attributes."""

    def __init__(self, nvml: Nvml, told: dict[str, Any], environment: dict[str, str]) -> None:
        self.nvml = nvml
        self.told = told
        hidden = environment.get("CUDA_VISIBLE_DEVICES")
        in_order = [nvml.gpus[i] for i in told["order"]] if "order" in told else nvml.gpus
        self.order = [g for g in in_order if g.function.options.get("lost") != "1"]
        if hidden is not None:
            self.order = _visible(self.order, hidden)

    def ask(self, call: str, *args: str | int) -> Any:
        """Return the answer to one call.

        Raises:
            HostError: as host/live/cuda.py would.
        """
        if self.told.get("state") == "absent" or not self.nvml.told:
            raise HostError(Reason.ABSENT, "libcuda.so.1 not found")
        if call == "DriverGetVersion":
            return self.nvml._system("SystemGetCudaDriverVersion_v2")
        if self.nvml.told.get("state", "loaded") != "loaded" or not self.order:
            raise HostError(Reason.ABSENT, "CUDA_ERROR_NO_DEVICE")
        if "error" in self.told:
            raise HostError(Reason.UNSUPPORTED, self.told["error"])
        if call == "DeviceGetCount":
            return len(self.order)
        g = self.order[int(args[0])]
        if call == "DeviceGetPCIBusId":
            return g.function.address.upper()
        if call == "DeviceGetUuid":
            return g.uuid
        if call == "DeviceGetName":
            return g.told["name"]
        if call == "DeviceCanAccessPeer":
            return int(self.nvml.p2p_word(g, self.order[int(args[1])], 0) == "OK")
        if call == "DeviceGetAttribute":
            return self._attribute(g, str(args[1]))
        raise HostError(Reason.UNSUPPORTED, f"{call} is not among the calls of topocheck")

    def _attribute(self, g: Gpu, name: str) -> int:
        open_module = self.nvml.told.get("flavor", "open") == "open"
        data_centre = int(bool(g.told.get("gdr", True)))
        values = {
            "INTEGRATED": int(bool(g.told.get("integrated", False))),
            "COMPUTE_MODE": int(g.told.get("compute_mode", 0)),
            "GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED": data_centre,
            "GPU_DIRECT_RDMA_SUPPORTED": data_centre,
            "GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS": 1,
            "GPU_DIRECT_RDMA_WRITES_ORDERING": 100 if g.told["arch"] >= 9 else 0,
            "DMA_BUF_SUPPORTED": data_centre & int(open_module),
            "HANDLE_TYPE_FABRIC_SUPPORTED": int(isinstance(g.told.get("fabric"), dict)),
            "MULTICAST_SUPPORTED": int(isinstance(g.told.get("fabric"), dict)),
            **{k: int(v) for k, v in self.told.items() if k.isupper()},
        }
        if name not in values:
            raise HostError(Reason.UNSUPPORTED, f"{name} is not among the attributes of topocheck")
        return values[name]
