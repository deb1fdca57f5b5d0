"""What NVML says on a described machine, worked out when asked (host/live/nvml.py's shapes)."""

from __future__ import annotations

import uuid
from typing import Any

from tests.machines.description import Function, Link
from tests.machines.gpus import Gpu, gpus
from tests.machines.nvml_links import LinkAnswers, error
from topocheck.host.base import HostError
from topocheck.model.address import parse_cpulist
from topocheck.model.base import Reason


class Nvml(LinkAnswers):
    """Answers for one machine. `overrides` maps `Call|args` (or a prefix ending in `*`) to an answer."""

    def __init__(self, fs: list[Function], d: dict[str, Any], name: str, numa: list[dict[str, Any]]) -> None:
        self.functions = fs
        self.told = d.get("driver", {})
        self.gpus = gpus(fs, d, name)
        self.p2p = d.get("p2p", {})
        self.numa = numa
        self.cpus_of_node = {int(n["id"]): n.get("cpus", "") for n in numa}
        self.overrides: dict[str, Any] = d.get("nvml", {})

    def ask(self, call: str, *args: str | int) -> Any:
        """Return the answer to one call.

        Raises:
            HostError: as host/live/nvml.py would.
        """
        state = self.told.get("state", "absent" if not self.told else "loaded")
        if state == "absent":
            raise HostError(Reason.ABSENT, "libnvidia-ml.so.1 not found")
        if state != "loaded":
            raise error(state)
        told = self._override("|".join(map(str, (call, *args))))
        if told is not None:
            if isinstance(told, dict) and set(told) == {"error"}:
                raise error(told["error"])
            if isinstance(told, dict) and set(told) == {"reason", "detail"}:  # a reason of topocheck's own
                raise HostError(Reason(told["reason"]), told["detail"])
            return told
        if call == "DeviceGetFieldValues":
            g = self._gpu(int(args[0]))
            return [self._field(g, *(int(x) for x in pair.split(":"))) for pair in str(args[1]).split(",")]
        method = getattr(self, f"_{call}", None)
        if call.startswith("System") or call == "DeviceGetCount":
            answer = self._system(call)
        elif method is not None:
            answer = method(*args)
        else:
            answer = self._device(self._gpu(int(args[0])), call)
        return answer

    def _override(self, key: str) -> Any:
        if key in self.overrides:
            return self.overrides[key]
        for pattern, value in self.overrides.items():
            if pattern.endswith("*") and key.startswith(pattern[:-1]):
                return value
        return None

    def _gpu(self, i: int) -> Gpu:
        if not 0 <= i < len(self.gpus):
            raise error("InvalidArgument")
        g = self.gpus[i]
        if g.function.options.get("lost") == "1":
            raise error("GpuIsLost")
        if "error" in g.told:
            raise error(g.told["error"])
        return g

    def _system(self, call: str) -> Any:
        version = self.told["version"]
        cuda = str(self.told.get("cuda", "12.8"))
        values = {
            "SystemGetDriverVersion": version,
            "SystemGetNVMLVersion": f"{cuda.split('.')[0]}.{version}",
            "SystemGetCudaDriverVersion_v2": int(cuda.split(".")[0]) * 1000 + int(cuda.split(".")[1]) * 10,
            "DeviceGetCount": len(self.gpus),
        }
        if call == "SystemGetConfComputeState":
            if "confidential" not in self.told:
                raise error("NotSupported")
            return {"environment": 0, "ccFeature": int(self.told["confidential"]), "devToolsMode": 0}
        if call not in values:
            raise error("FunctionNotFound")
        return values[call]

    def _device(self, g: Gpu, call: str) -> Any:
        values = self._values(g)
        name = call.removeprefix("DeviceGet")
        if name not in values:
            raise HostError(Reason.UNSUPPORTED, f"{call} is not among the calls of topocheck")
        value = values[name]
        if value is None:
            raise error("NotSupported")
        return value

    def _values(self, g: Gpu) -> dict[str, Any]:
        f, t = g.function, g.told
        domain, bus, device = (int(x, 16) for x in f.address.split(".")[0].split(":"))
        vendor_id, device_id = f.product["id"].split(":")
        sub_vendor, sub_device = f.product.get("sub", "10de:0000").split(":")
        bar1 = t.get("bar1_mib", 256) << 20
        used = int(t.get("memory_used_mib", 1)) << 20
        total = t["memory_mib"] << 20 if t.get("memory_mib") else None
        now, most = f.now or Link(1, 1), f.max or Link(1, 1)
        port = f.parent.max if f.parent and f.parent.max and f.parent.role in ("root_port", "downstream") else most
        assert port is not None
        flat = f.parent is None  # a guest without ports: NVML tells the card's own link
        busy = now.gen == min(most.gen, port.gen)
        c2c, mig, ecc = t.get("c2c"), t.get("mig"), t.get("ecc")
        return {
            "PciInfo": {
                "busId": f"{domain:08X}:{bus:02X}:{device:02X}.0",
                "domain": domain,
                "bus": bus,
                "device": device,
                "pciDeviceId": int(device_id + vendor_id, 16),
                "pciSubSystemId": int(sub_device + sub_vendor, 16),
            },
            "UUID": g.uuid,
            "Name": t["name"],
            "Serial": t.get("serial_text", f"16500000{g.index:05d}") if t.get("ecc") is not None else None,
            "VbiosVersion": t.get("vbios", "96.00.74.00.01"),
            "BoardPartNumber": t.get("board_part"),
            "MinorNumber": int(t.get("minor", g.index)),
            "BoardId": bus << 8 | device << 3,
            "ModuleId": int(t.get("module_id", g.index + 1)),
            "MultiGpuBoard": 0,
            "Architecture": t["arch"],
            "CudaComputeCapability": [int(x) for x in str(t["cc"]).split(".")],
            "MemoryInfo": total and {"total": total, "free": total - used, "used": used, "reserved": 0},
            "BAR1MemoryInfo": {"bar1Total": bar1, "bar1Free": bar1 - (1 << 20), "bar1Used": 1 << 20},
            "CurrPcieLinkGeneration": now.gen,
            "CurrPcieLinkWidth": now.width,
            "MaxPcieLinkGeneration": most.gen if flat else min(most.gen, port.gen),
            "MaxPcieLinkWidth": most.width if flat else min(most.width, port.width),
            "GpuMaxPcieLinkGeneration": most.gen,
            "PcieReplayCounter": int(t.get("replays", 0)),
            "PerformanceState": int(t.get("pstate", 0 if busy else 8)),
            "ComputeMode": int(t.get("compute_mode", 0)),
            "PersistenceMode": int(t.get("persistence", 1)),
            "VirtualizationMode": int(t.get("virtualization", 0)),
            "AddressingMode": t.get("addressing", 0),
            "PowerManagementLimit": int(t.get("power_limit_w", 700)) * 1000,
            "PowerManagementDefaultLimit": int(t.get("power_default_w", 700)) * 1000,
            "CurrentClocksEventReasons": int(t.get("clock_reasons", 1)),
            "UtilizationRates": {"gpu": int(t.get("utilization", 0)), "memory": 0},
            "MigMode": None if mig is None else [mig, int(t.get("mig_pending", mig))],
            "EccMode": None if ecc is None else [ecc, int(t.get("ecc_pending", ecc))],
            "MaxMigDeviceCount": 7 if mig else 0,
            "C2cModeInfoV": {"isC2cEnabled": 1 if c2c else 0} if t["arch"] >= 9 else None,
            "GpuFabricInfoV": self._fabric(t),
            "NumaNodeId": t.get("gpu_numa_node"),
            "ComputeRunningProcesses": [{"pid": p, "usedGpuMemory": None} for p in t.get("pids", [])],
            "GraphicsRunningProcesses": [],
        }

    @staticmethod
    def _fabric(t: dict[str, Any]) -> dict[str, Any] | None:
        """State 3 is completed; status 0 is success (nvml.h, nvmlGpuFabricState_t)."""
        told = t.get("fabric")
        if told is None or told is False:
            return None
        return {
            "clusterUuid": "00000000-0000-0000-0000-000000000000",
            "status": 0,
            "cliqueId": 0,
            "state": 3,
            "healthMask": 0,
            **told,
        }

    def _DeviceGetClockInfo(self, i: int, clock: int) -> int:
        return int(self._gpu(int(i)).told.get("clock_mhz", 345))

    def _DeviceGetMaxClockInfo(self, i: int, clock: int) -> int:
        told = self._gpu(int(i)).told
        return int(told.get("clock_memory_max_mhz", 2619) if int(clock) == 2 else told.get("clock_max_mhz", 1980))

    def _DeviceGetApplicationsClock(self, i: int, clock: int) -> int:
        return int(self._gpu(int(i)).told.get("clock_application_mhz", 1980))

    def _DeviceGetTemperature(self, i: int, sensor: int) -> int:
        return int(self._gpu(int(i)).told.get("temperature", 34))

    def _DeviceGetMigDeviceHandleByIndex(self, i: int, m: int) -> dict[str, str]:
        slices = self._gpu(int(i)).told.get("mig_devices", [])
        if int(m) >= len(slices):
            raise error("NotFound")
        told = slices[int(m)]
        if isinstance(told, dict):
            return dict(told)
        return {"uuid": f"MIG-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{i}/{m}')}", "name": told}

    def _DeviceGetCpuAffinity(self, i: int, words: int) -> list[int]:
        f = self._gpu(int(i)).function
        cpus = self.cpus_of_node.get(f.node)
        listed = [cpus] if cpus is not None else list(self.cpus_of_node.values())
        return _words(frozenset().union(*(parse_cpulist(c) for c in listed)), int(words))

    def _DeviceGetMemoryAffinity(self, i: int, words: int, scope: int = 0) -> list[int]:
        g = self._gpu(int(i))
        if "memory_affinity" in g.told:
            return _words(parse_cpulist(str(g.told["memory_affinity"])), int(words))
        node = g.function.node
        return _words(frozenset({node if node >= 0 else min(self.cpus_of_node, default=0)}), int(words))


def _words(numbers: frozenset[int], words: int) -> list[int]:
    bits = sum(1 << n for n in numbers)
    out = [bits >> (64 * w) & (1 << 64) - 1 for w in range(words)]
    while out and out[-1] == 0:
        out.pop()
    return out
