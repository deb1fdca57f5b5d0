"""What NVML says of NVLinks, pairs and field values on a described machine (host/live/nvml.py's shapes)."""

from __future__ import annotations

import functools
from typing import Any

from tests.machines.gpus import Gpu, Peer, common_class
from topocheck.host.base import HostError
from topocheck.host.live.nvml import REASONS
from topocheck.model.base import Reason

P2P = {"OK": 0, "CNS": 1, "GNS": 2, "TNS": 3, "DR": 4, "NS": 5, "U": 6}
ANCESTOR = {"X": 0, "PIX": 10, "PXB": 20, "PHB": 30, "NODE": 40, "SYS": 50}
_NVLINK_MAX = 18
_NOT_SUPPORTED, _INVALID_ARGUMENT = 3, 2


def error(name: str) -> HostError:
    """Return the error that pynvml's exception of that name becomes."""
    full = f"NVMLError_{name}"
    return HostError(REASONS.get(full, Reason.UNSUPPORTED), full)


class LinkAnswers:
    """Answers about links and pairs; `Nvml` has the rest. `p2p` is the table `[p2p]`."""

    p2p: dict[str, Any]

    def _gpu(self, i: int) -> Gpu:
        raise NotImplementedError

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
            up_here = int(scope not in c2c.get("down", ()))
            values = {
                "C2C_LINK_COUNT": c2c["links"],
                "C2C_LINK_GET_STATUS": up_here,
                "C2C_LINK_GET_MAX_BW": c2c["mb_s"],
            }
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


@functools.cache
def _field_names() -> dict[int, str]:
    import pynvml

    out: dict[int, str] = {}
    for name in dir(pynvml):
        value = getattr(pynvml, name)
        if name.startswith("NVML_FI_DEV_") and isinstance(value, int):
            out.setdefault(value, name.removeprefix("NVML_FI_DEV_"))
    return out
