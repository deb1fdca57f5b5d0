"""What NVML and the CUDA driver say on a described machine, worked out when asked (host/nvml_calls.py's shapes)."""

from __future__ import annotations

import functools
import uuid
from typing import Any

import msgspec

from tests.machines.description import DescriptionError, Function, Link
from topocheck.host.base import HostError
from topocheck.host.nvml_calls import REASONS
from topocheck.model.address import parse_cpulist
from topocheck.model.base import Reason

P2P = {"OK": 0, "CNS": 1, "GNS": 2, "TNS": 3, "DR": 4, "NS": 5, "U": 6}
ANCESTOR = {"X": 0, "PIX": 10, "PXB": 20, "PHB": 30, "NODE": 40, "SYS": 50}
_NVLINK_MAX = 18
_NOT_SUPPORTED, _INVALID_ARGUMENT = 3, 2


def error(name: str) -> HostError:
    """Return the error that pynvml's exception of that name becomes."""
    full = f"NVMLError_{name}"
    return HostError(REASONS.get(full, Reason.UNSUPPORTED), full)


class Peer(msgspec.Struct, frozen=True):
    """The far end of one NVLink: gpu, switch or ibmnpu; its address; None where the link is down."""

    kind: str
    address: str


class Gpu(msgspec.Struct, kw_only=True):
    """One GPU with what the description told of it."""

    index: int
    function: Function
    told: dict[str, Any]
    uuid: str
    links: list[Peer | None]


def gpus(fs: list[Function], d: dict[str, Any], name: str) -> list[Gpu]:
    """Return the GPUs that NVML knows: NVIDIA's, on the nvidia driver, in order of address."""
    found = [f for f in fs if f.kind == "gpu" and f.options.get("driver", f.product.get("driver")) == "nvidia"]
    out = []
    for i, f in enumerate(found):
        told = {**f.product, **d.get("gpus", {}), **d.get("gpu", {}).get(str(i), {})}
        own = told.get("uuid", f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{name}/{i}')}")
        out.append(Gpu(index=i, function=f, told=told, uuid=own, links=[]))
    _links(out, fs, d.get("nvlink", {}), name)
    return out


def _links(all_gpus: list[Gpu], fs: list[Function], told: dict[str, Any], name: str) -> None:
    """Fill the links: `switch = N` per GPU, `pairs = {"0-1" = 2}`, `npu = N` to a POWER9; the rest is down."""
    switches = [f.address for f in fs if f.kind == "nvswitch"]
    masked = told.get("masked", False)
    for g in all_gpus:
        n = int(g.told.get("switch_links", told.get("switch", 0)))
        for i in range(n):
            far = "FFFFFFFF:FF:FF.0" if masked or not switches else switches[i % len(switches)]
            g.links.append(Peer("switch", far))
    for pair, count in told.get("pairs", {}).items():
        a, b = (int(x) for x in pair.split("-"))
        if max(a, b) >= len(all_gpus):
            raise DescriptionError(f"{name}: nvlink.pairs: {pair!r} names a GPU that is not there")
        for here, there in ((a, b), (b, a)):
            far = all_gpus[there].function.address
            all_gpus[here].links += [Peer("gpu", far)] * int(count)
    for g in all_gpus:
        for _ in range(int(told.get("npu", 0))):
            g.links.append(Peer("ibmnpu", "0004:00:00.0"))
        total = int(g.told.get("nvlinks", 0))
        if len(g.links) > total:
            raise DescriptionError(f"{name}: GPU{g.index} has {len(g.links)} links of {total}")
        g.links += [None] * (total - len(g.links))
        for down in g.told.get("links_down", []):
            g.links[int(down)] = None


def common_class(a: Function, b: Function) -> str:
    """Return the class of two functions by the definitions of `nvidia-smi topo`'s legend."""
    above_a, above_b = _above(a), _above(b)
    shared = [f for f in above_a if any(f is g for g in above_b)]
    if shared:
        # Bridges crossed on the way between the two: below the nearest shared one, and itself.
        nearest = shared[0]
        crossed = [*above_a[: above_a.index(nearest)], *above_b[: above_b.index(nearest)]]
        switches = {id(f) for f in (*crossed, nearest) if f.role == "upstream"}
        return "PIX" if len(switches) <= 1 else "PXB"
    if a.root is b.root:
        return "PHB"
    return "NODE" if a.node == b.node and a.node >= 0 else "SYS"


def _above(f: Function) -> list[Function]:
    out = []
    while f.parent is not None:
        f = f.parent
        out.append(f)
    return out


class Nvml:
    """Answers for one machine. `overrides` maps `Call|args` (or a prefix ending in `*`) to an answer."""

    def __init__(self, fs: list[Function], d: dict[str, Any], name: str, numa: list[dict[str, Any]]) -> None:
        self.told = d.get("driver", {})
        self.gpus = gpus(fs, d, name)
        self.p2p = d.get("p2p", {})
        self.numa = numa
        self.cpus_of_node = {int(n["id"]): n.get("cpus", "") for n in numa}
        self.overrides: dict[str, Any] = d.get("nvml", {})

    def ask(self, call: str, *args: str | int) -> Any:
        """Return the answer to one call.

        Raises:
            HostError: as host/nvml_calls.py would.
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
            "ModuleId": g.index + 1,
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
            "CurrentClocksEventReasons": int(t.get("clock_reasons", 1)),
            "UtilizationRates": {"gpu": int(t.get("utilization", 0)), "memory": 0},
            "MigMode": None if mig is None else [mig, int(t.get("mig_pending", mig))],
            "EccMode": None if ecc is None else [ecc, ecc],
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
        return int(self._gpu(int(i)).told.get("clock_max_mhz", 1980))

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

    def _link(self, i: int, link: int) -> tuple[Gpu, Peer]:
        g = self._gpu(int(i))
        self._link_state(g, int(link))
        peer = g.links[int(link)]
        if peer is None:
            raise error("NotSupported")
        return g, peer

    @staticmethod
    def _link_state(g: Gpu, link: int) -> int:
        if not 0 <= link < _NVLINK_MAX:
            raise error("InvalidArgument")
        if link >= len(g.links):
            raise error("InvalidArgument" if g.links else "NotSupported")
        return 0 if g.links[link] is None else 1

    def _DeviceGetNvLinkState(self, i: int, link: int) -> int:
        return self._link_state(self._gpu(int(i)), int(link))

    def _DeviceGetNvLinkVersion(self, i: int, link: int) -> int:
        return int(self._link(i, link)[0].told["nvlink_version"])

    def _DeviceGetNvLinkRemoteDeviceType(self, i: int, link: int) -> int:
        return {"gpu": 0, "ibmnpu": 1, "switch": 2}[self._link(i, link)[1].kind]

    def _DeviceGetNvLinkRemotePciInfo(self, i: int, link: int) -> dict[str, Any]:
        address = self._link(i, link)[1].address
        if address.startswith("F"):
            return {
                "busId": address,
                "domain": 0xFFFFFFFF,
                "bus": 255,
                "device": 255,
                "pciDeviceId": 0xFFFFFFFF,
                "pciSubSystemId": 0,
            }
        domain, bus, device = (int(x, 16) for x in address.split(".")[0].split(":"))
        return {
            "busId": f"{domain:08X}:{bus:02X}:{device:02X}.0",
            "domain": domain,
            "bus": bus,
            "device": device,
            "pciDeviceId": 0,
            "pciSubSystemId": 0,
        }

    def _DeviceGetNvLinkCapability(self, i: int, link: int, capability: int) -> int:
        self._link(i, link)
        return 1

    def _DeviceGetP2PStatus(self, i: int, j: int, index: int) -> int:
        a, b = self._gpu(int(i)), self._gpu(int(j))
        return P2P[self.p2p_word(a, b, int(index))]

    def p2p_word(self, a: Gpu, b: Gpu, index: int) -> str:
        """Return the status of a pair in nvidia-smi's letters.

        A joined pair is OK but for its PCIe line; another follows `[p2p]`: one word for all, or one per
        capability (read, write, nvlink, atomics, pcie) or per class (PIX...SYS).
        """
        word = ("read", "write", "nvlink", "atomics", "pcie")[index]
        joined = self.joined(a, b)
        pair = self.p2p.get("pairs", {}).get(f"{a.index}-{b.index}") or self.p2p.get("pairs", {}).get(
            f"{b.index}-{a.index}"
        )
        if pair:
            return str(pair if isinstance(pair, str) else pair[word])
        if joined and not self.p2p.get("override"):
            return "NS" if word == "pcie" else "OK"
        told = self.p2p.get(common_class(a.function, b.function), self.p2p.get(word, self.p2p.get("all", "OK")))
        return "NS" if word == "nvlink" else "NS" if word == "atomics" and "atomics" not in self.p2p else str(told)

    def joined(self, a: Gpu, b: Gpu) -> bool:
        """Whether NVLinks join two GPUs, directly or through switches."""
        direct = any(p and p.address == b.function.address for p in a.links)
        return direct or all(any(p and p.kind == "switch" for p in g.links) for g in (a, b))

    def _DeviceGetTopologyCommonAncestor(self, i: int, j: int) -> int:
        return ANCESTOR[common_class(self._gpu(int(i)).function, self._gpu(int(j)).function)]

    def _field(self, g: Gpu, field: int, scope: int) -> list[Any]:
        """Answer one field: names from pynvml's NVML_FI_DEV_*; the scope is the link where a field has one."""
        name = _field_names().get(field, "")
        up = [p is not None for p in g.links]
        speed = int(g.told.get("nvlink_mb_s", 0))
        if name == "NVLINK_LINK_COUNT":
            return [field, scope, len(g.links), 0]
        if name == "NVLINK_SPEED_MBPS_COMMON":
            return [field, scope, speed, 0] if any(up) else [field, scope, None, _NOT_SUPPORTED]
        for stem in ("NVLINK_SPEED_MBPS_L", "NVLINK_CRC_FLIT_ERROR_COUNT_L", "NVLINK_CRC_DATA_ERROR_COUNT_L",
                     "NVLINK_REPLAY_ERROR_COUNT_L", "NVLINK_RECOVERY_ERROR_COUNT_L"):  # fmt: skip
            if name.startswith(stem) and name[len(stem) :].isdigit():
                return self._link_field(g, field, scope, int(name[len(stem) :]), "SPEED" in stem, speed)
        if name == "NVLINK_GET_STATE" and scope < len(up):
            return [field, scope, int(up[scope]), 0]
        if name in ("NVLINK_GET_SPEED",) or name.startswith("NVLINK_COUNT_") or name.startswith("NVLINK_ERROR_DL"):
            return self._link_field(g, field, scope, scope, name == "NVLINK_GET_SPEED", speed)
        c2c = g.told.get("c2c")
        if name.startswith("C2C_LINK_") and c2c:
            values = {"C2C_LINK_COUNT": c2c["links"], "C2C_LINK_GET_STATUS": 1, "C2C_LINK_GET_MAX_BW": c2c["mb_s"]}
            return [field, scope, values.get(name), 0 if name in values else _NOT_SUPPORTED]
        if name == "PCIE_REPLAY_COUNTER":
            return [field, scope, int(g.told.get("replays", 0)), 0]
        return [field, scope, None, _NOT_SUPPORTED]

    @staticmethod
    def _link_field(g: Gpu, field: int, scope: int, link: int, is_speed: bool, speed: int) -> list[Any]:
        if link >= len(g.links):
            return [field, scope, None, _INVALID_ARGUMENT if g.links else _NOT_SUPPORTED]
        if g.links[link] is None:
            return [field, scope, 0, 0] if is_speed else [field, scope, None, _NOT_SUPPORTED]
        errors = g.told.get("link_errors", {}).get(str(link), 0)
        return [field, scope, speed if is_speed else int(errors), 0]


def _words(numbers: frozenset[int], words: int) -> list[int]:
    bits = sum(1 << n for n in numbers)
    out = [bits >> (64 * w) & (1 << 64) - 1 for w in range(words)]
    while out and out[-1] == 0:
        out.pop()
    return out


@functools.cache
def _field_names() -> dict[int, str]:
    import pynvml

    out: dict[int, str] = {}
    for name in dir(pynvml):
        value = getattr(pynvml, name)
        if name.startswith("NVML_FI_DEV_") and isinstance(value, int):
            out.setdefault(value, name.removeprefix("NVML_FI_DEV_"))
    return out


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
    """The CUDA driver on the same machine (host/cuda_calls.py's shapes). `[cuda]` overrides attributes."""

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
            HostError: as host/cuda_calls.py would.
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
