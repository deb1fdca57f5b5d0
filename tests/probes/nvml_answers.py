"""What NVML answers on a virtual machine with two H100 SXM5, and how to change one answer of it.

Restated from a record of such a machine (driver 580.159.04, GPUs passed through): PCIe 5.0 x16, 18 active NVLinks
to switches whose addresses the hypervisor masks, P2P allowed for all but the PCIe kind, fabric registered with the
zero cluster UUID, chip-to-chip links not there. UUIDs and serial numbers are made up.
"""

from __future__ import annotations

from typing import Any

from topocheck.host.base import Answer, Host, HostError, RecordedBackend, key
from topocheck.model.base import Reason
from topocheck.probes.nvml import fields

LINKS = 18
LOST = HostError(Reason.UNSUPPORTED, "NVMLError_GpuIsLost")
NOT_SUPPORTED = HostError(Reason.UNSUPPORTED, "NVMLError_NotSupported")
INVALID = HostError(Reason.UNSUPPORTED, "NVMLError_InvalidArgument")

_RC_NOT_SUPPORTED = 3
_COUNTERS = {91: LINKS, 94: 1, 95: 0, 169: 849, 175: 18, 176: 25, 177: 17, 178: 1, 183: 44}
_COUNTERS |= dict.fromkeys((173, 174, 179, 180, 181, 182), 0)
"""Field values of a healthy idle GPU of that kind: a PCIe link that trained, and 18 NVLinks."""


def pci_info(bus_id: str) -> dict[str, Answer]:
    """Return a PCI info as NVML fills it."""
    return {"busId": bus_id, "domain": 0, "bus": 0, "device": 0, "pciDeviceId": 590352606, "pciSubSystemId": 381751518}


def field_values(question: str, values: dict[int, int]) -> list[list[Any]]:
    """Return the answer to a question for field values: those in `values`, the rest not supported."""
    pairs = [tuple(map(int, pair.split(":"))) for pair in question.split(",")]
    return [
        [field, scope, values[field], 0] if field in values else [field, scope, None, _RC_NOT_SUPPORTED]
        for field, scope in pairs
    ]


def h100_vm() -> dict[str, Answer]:
    """Return key -> answer of the whole machine."""
    system: dict[str, Answer] = {
        "SystemGetDriverVersion": "580.159.04",
        "SystemGetNVMLVersion": "13.580.159.04",
        "SystemGetCudaDriverVersion_v2": 13000,
        "SystemGetConfComputeState": {"environment": 0, "ccFeature": 0, "devToolsMode": 0},
        "DeviceGetCount": 2,
    }
    out = {key("nvml", (call,)): answer for call, answer in system.items()}
    for i in range(2):
        for call, answer in _gpu(i).items():
            name, *args = call.split("|")
            out[key("nvml", (name, i, *args))] = answer
        out[key("nvml", ("DeviceGetTopologyCommonAncestor", i, 1 - i))] = 30
        for kind in range(5):
            out[key("nvml", ("DeviceGetP2PStatus", i, 1 - i, kind))] = 5 if kind == 4 else 0
    return out


def _gpu(i: int) -> dict[str, Answer]:
    own = fields.device_fields()
    speeds = fields.link_speed_fields(LINKS)
    answers: dict[str, Answer] = {
        "DeviceGetPciInfo": pci_info(f"00000000:00:0{6 + i}.0"),
        "DeviceGetUUID": f"GPU-00000000-0000-4000-8000-00000000000{i + 2}",
        "DeviceGetName": "NVIDIA H100 80GB HBM3",
        "DeviceGetSerial": "0000000000000",
        "DeviceGetVbiosVersion": "96.00.DA.00.0C",
        "DeviceGetBoardPartNumber": "692-2G520-0200-000",
        "DeviceGetMinorNumber": i,
        "DeviceGetBoardId": 6 + i,
        "DeviceGetModuleId": 1 + 2 * i,
        "DeviceGetArchitecture": 9,
        "DeviceGetCudaComputeCapability": [9, 0],
        "DeviceGetMemoryInfo": {"total": 85520809984, "free": 85017493504, "used": 503316480},
        "DeviceGetBAR1MemoryInfo": {"bar1Total": 137438953472, "bar1Free": 137437249536, "bar1Used": 1703936},
        "DeviceGetCurrPcieLinkGeneration": 5,
        "DeviceGetCurrPcieLinkWidth": 16,
        "DeviceGetMaxPcieLinkGeneration": 5,
        "DeviceGetMaxPcieLinkWidth": 16,
        "DeviceGetGpuMaxPcieLinkGeneration": 5,
        "DeviceGetPcieReplayCounter": 1,
        "DeviceGetPerformanceState": 0,
        "DeviceGetClockInfo|1": 345,
        "DeviceGetMaxClockInfo|1": 1980,
        "DeviceGetCurrentClocksEventReasons": 1,
        "DeviceGetTemperature|0": 33,
        "DeviceGetUtilizationRates": {"gpu": 0, "memory": 0},
        "DeviceGetMigMode": [0, 0],
        "DeviceGetEccMode": [1, 1],
        "DeviceGetComputeMode": 0,
        "DeviceGetPersistenceMode": 1,
        "DeviceGetVirtualizationMode": 1,
        "DeviceGetAddressingMode": 0,
        "DeviceGetC2cModeInfoV": {"isC2cEnabled": 0},
        "DeviceGetGpuFabricInfoV": {
            "clusterUuid": "00000000-0000-0000-0000-000000000000",
            "status": 0,
            "cliqueId": 0,
            "state": 3,
            "healthMask": 0,
            "healthSummary": 0,
        },
        "DeviceGetCpuAffinity|64": [0xFFFFFFFF],
        "DeviceGetMemoryAffinity|16|0": [1],
        "DeviceGetNumaNodeId": NOT_SUPPORTED,
        "DeviceGetComputeRunningProcesses": [],
        "DeviceGetGraphicsRunningProcesses": [],
        f"DeviceGetFieldValues|{own}": field_values(own, _COUNTERS),
        f"DeviceGetFieldValues|{speeds}": field_values(speeds, {164: 26562}),
    }
    for link in range(LINKS):
        errors = fields.link_error_fields(link, fields.NVLINK_ERRORS)
        answers |= {
            f"DeviceGetNvLinkState|{link}": 1,
            f"DeviceGetNvLinkVersion|{link}": 6,
            f"DeviceGetNvLinkRemoteDeviceType|{link}": 2,
            f"DeviceGetNvLinkRemotePciInfo|{link}": pci_info("FFFFFFFF:FF:FF.0"),
            f"DeviceGetFieldValues|{errors}": field_values(errors, {161: 0, 162: 0, 163: 0}),
        }
        answers |= {f"DeviceGetNvLinkCapability|{link}|{c}": 1 for c in range(4)}
    return answers


def host(answers: dict[str, Answer]) -> Host:
    """Return a Host that gives these answers; what is not among them was not recorded."""
    return Host(RecordedBackend(answers), "record")


def changed(answers: dict[str, Answer], call: str, answer: Answer, *args: str | int) -> dict[str, Answer]:
    """Return the answers with one of them changed."""
    k = key("nvml", (call, *args))
    assert k in answers, k
    return {**answers, k: answer}
