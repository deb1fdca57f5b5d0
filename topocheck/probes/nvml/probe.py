"""The NVML probe: the driver, then each GPU by itself, then the pairs."""

from __future__ import annotations

from typing import Any

import msgspec

from topocheck.host.base import Host, HostError
from topocheck.model.address import address_key, normalize_address
from topocheck.model.base import Missing, known, unparsable
from topocheck.model.gpu import NvmlFacts, NvmlGpu
from topocheck.probes.nvml import fabric, fields, identity, nvlink, p2p, pcie, state
from topocheck.probes.nvml.fields import parse_field_values
from topocheck.probes.nvml.queries import Asked, as_integer, as_text, evidence_text, member

MAX_GPUS = 256
"""An answer above it is not believed; NVIDIA's driver takes 32 GPUs (NV_MAX_DEVICES, nvlimits.h)."""

_PROC_GPUS = "/proc/driver/nvidia/gpus"
_MISMATCH = "NVMLError_LibRmVersionMismatch"
_WORDS = {
    "libnvidia-ml.so.1 not found": "The NVIDIA driver's library libnvidia-ml.so.1 is not on this machine.",
    "nvidia-ml-py not installed": "The Python package nvidia-ml-py is not installed, so NVML cannot be asked.",
    "NVMLError_DriverNotLoaded": "The NVIDIA kernel driver is not loaded, so NVML has nothing to say.",
    _MISMATCH: (
        "The NVIDIA library and the loaded kernel driver are of different versions; reload the driver or reboot."
    ),
    "NVMLError_NoPermission": "This user may not talk to the NVIDIA driver.",
}


def read(host: Host) -> NvmlFacts:
    """Return what NVML says. Where it says nothing, `gpus` is Missing and `error` says why in words."""
    raw: dict[str, str] = {}
    count = as_integer(_system(host, raw, "DeviceGetCount"))
    if isinstance(count, int) and count > MAX_GPUS:
        count = unparsable(f"{count}: more than {MAX_GPUS} GPUs")
    if isinstance(count, Missing):
        return _without_gpus(host, raw, count)
    gpus = with_addresses(host, [_gpu(host, index) for index in range(count)])
    return NvmlFacts(
        source="NVML",
        driver_version=as_text(_system(host, raw, "SystemGetDriverVersion")),
        nvml_version=as_text(_system(host, raw, "SystemGetNVMLVersion")),
        cuda_version=cuda_version(as_integer(_system(host, raw, "SystemGetCudaDriverVersion_v2"))),
        conf_computing=_conf_computing(_system(host, raw, "SystemGetConfComputeState")),
        gpus=gpus,
        p2p=p2p.read(host, gpus, raw),
        raw=raw,
    )


def _without_gpus(host: Host, raw: dict[str, str], why: Missing) -> NvmlFacts:
    """The kernel module says its version even where NVML cannot be had; that is another probe's to tell."""
    # The library's own version needs no driver.
    version = as_text(_system(host, raw, "SystemGetNVMLVersion")) if why.detail == _MISMATCH else why
    return NvmlFacts(
        source="NVML", driver_version=why, nvml_version=version, cuda_version=why, conf_computing=why, gpus=why,
        raw=raw, error=_WORDS.get(why.detail, f"NVML does not answer ({why})."),
    )  # fmt: skip


def _system(host: Host, raw: dict[str, str], call: str) -> Any:
    try:
        answer = host.nvml(call)
    except HostError as e:
        answer = e.missing()
    raw[call] = evidence_text(answer)
    return answer


def _gpu(host: Host, index: int) -> NvmlGpu:
    """Ask one GPU everything. A lost one is asked nothing more, and keeps what came before."""
    gpu = Asked(host, index)
    found: dict[str, Any] = identity.read(gpu)
    if not found.get("lost"):
        answer = gpu.answer("DeviceGetFieldValues", fields.device_fields(), keep=False)
        values = answer if isinstance(answer, Missing) else parse_field_values(answer)
        _keep_values(gpu, values)
        count = pcie.value(values, fields.NVLINK_COUNT)
        found |= pcie.read(gpu, values) | state.read(gpu) | fabric.read(gpu)
        found |= {"nvlink_count": count, "nvlinks": nvlink.read(gpu, count)}
    if gpu.lost is not None:
        found["lost"] = True
    if gpu.trouble and not found.get("error"):
        found["error"] = gpu.trouble
    return NvmlGpu(index=index, source=_source(index, found["address"]), raw=gpu.raw, **found)


def _source(index: int, address: str | Missing) -> str:
    return f"NVML GPU {index if isinstance(address, Missing) else address}"


def _keep_values(gpu: Asked, values: pcie.Values | Missing) -> None:
    if isinstance(values, Missing):
        gpu.raw["DeviceGetFieldValues"] = evidence_text(values)
        return
    for (field, _), number in values.items():
        gpu.raw[f"FieldValue({field})"] = evidence_text(number)


def cuda_version(number: int | Missing) -> str | Missing:
    """Return `13.0` for 13000 (1000 x major + 10 x minor, cuda.h)."""
    return number if isinstance(number, Missing) else f"{number // 1000}.{number % 1000 // 10}"


def _conf_computing(answer: Any) -> bool | Missing:
    if not isinstance(answer, (dict, Missing)):
        return unparsable(repr(answer))
    feature = member(answer, "ccFeature")
    return feature if isinstance(feature, Missing) else feature != 0


def with_addresses(host: Host, gpus: list[NvmlGpu]) -> tuple[NvmlGpu, ...]:
    """Give a lost GPU the address that is left over in /proc, where NVML did not say it.

    NVML counts in the order of PCI addresses (nvmlDeviceGetHandleByIndex), and the kernel driver lists the GPUs it
    was bound to, lost ones too. Only done where both lists have the same length: otherwise nobody can tell.
    """
    if all(known(g.address) for g in gpus):
        return tuple(gpus)
    try:
        listed = [a for name in host.listdir(_PROC_GPUS) if (a := normalize_address(name))]
    except HostError:
        return tuple(gpus)
    if len(listed) != len(gpus):
        return tuple(gpus)
    taken = {g.address for g in gpus}
    free = iter(sorted((a for a in listed if a not in taken), key=address_key))
    return tuple(g if known(g.address) else _placed(g, next(free, None)) for g in gpus)


def _placed(gpu: NvmlGpu, address: str | None) -> NvmlGpu:
    if address is None:
        return gpu
    raw = gpu.raw | {f"{_PROC_GPUS} (the one left over)": address}
    return msgspec.structs.replace(gpu, address=address, source=_source(gpu.index, address), raw=raw)
