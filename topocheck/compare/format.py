"""How a place and a value are written for a reader."""

from __future__ import annotations

from collections.abc import Mapping

from topocheck.compare.fields import KINDS, Field, kind_of
from topocheck.compare.match import WHOLE, rename_slot
from topocheck.compare.types import UNKNOWN, Difference, Value
from topocheck.knowledge.products import nic_port
from topocheck.model.base import is_digits

_MELLANOX = 0x15B3
_ARRAYS = {"gpu": "gpus", "accelerator": "accelerators", "nic": "nics", "pci": "pci"}
_HOST_PARTS = {"memlock_bytes": "limits", "nofile": "limits", "stack_bytes": "limits"}


def shown(value: Value) -> str:
    """Return a value as text; `unknown (denied)` for one that could not be known."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "absent"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    text = str(value)
    return f"unknown ({text[1:].replace('_', ' ')})" if text.startswith(UNKNOWN) and text != UNKNOWN else text or "none"


def chip(pci_id: str) -> str:
    """Return PCI ids with the trade name before them where it is known: `ConnectX-7 15b3:1021`."""
    vendor, _, device = pci_id.partition(":")
    try:
        ids = int(vendor, 16), int(device, 16)
    except ValueError:
        return pci_id
    port = nic_port(*ids)
    return f"{port.name} {pci_id}" if port is not None else pci_id


def hca(model: str) -> str:
    """Return an `hca_type` with its trade name; the number behind `MT` is the PCI device id in decimal."""
    number = model.removeprefix("MT")
    port = nic_port(_MELLANOX, int(number)) if number != model and is_digits(number) and len(number) < 6 else None
    return f"{port.name} ({model})" if port is not None else model


def size(size_bytes: float) -> str:
    """Return a size of memory as text."""
    return f"{size_bytes / 2**30:.1f} GiB" if size_bytes >= 2**30 else f"{size_bytes / 2**20:.1f} MiB"


def size_source(slot: str, field: str, addresses: Mapping[str, str]) -> str:
    """Return the file or call behind a size that is compared with a tolerance."""
    kind = kind_of(slot)
    if kind == "gpu":
        return f"NVML {addresses.get(slot, '?')} DeviceGetMemoryInfo"
    if kind == "numa":
        return f"/sys/devices/system/node/node{slot[5:]}/meminfo MemTotal"
    return "statvfs /dev/shm" if field.startswith("shm") else "/proc/meminfo MemTotal"


def place(slot: str, addresses: Mapping[str, str]) -> str:
    """Return a slot in words: `GPU 3 0000:4c:00.0`, `mlx5_1 0000:3b:00.0 port 1`, `path GPU 0 - mlx5_1`."""
    kind = kind_of(slot)
    if kind == "path":
        return "path " + " - ".join(_device(s, addresses) for s in slot[5:].split("-"))
    if kind == "port":
        nic, _, port = slot[5:].partition("/")
        return f"{place(nic, addresses)} port {port}"
    if kind == "pci" and " " in slot:
        return place(slot[4:], addresses)
    if kind == "setting":
        return slot[8:]
    if kind == "inventory":
        return f"inventory {chip(slot[10:])}"
    if kind in _ARRAYS:
        address = addresses.get(slot, "")
        return f"{_device(slot, addresses)} {address}".strip() if kind != "pci" else f"port {address or slot[3:]}"
    return slot


def _device(slot: str, addresses: Mapping[str, str]) -> str:
    """Return a NIC by the name that NCCL and ibstat print, another device by its kind and number."""
    kind = kind_of(slot)
    if label := addresses.get(f"label {slot}"):
        return label
    name = {"gpu": "GPU", "nic": "NIC", "pci": "port"}.get(kind, kind)
    return f"{name} {slot[len(kind) :].lstrip('+')}"


def difference(
    key: tuple[str, int],
    value: Value,
    usual: Value,
    share: float,
    addresses: Mapping[str, str],
    reference: Mapping[str, str],
    mapping: Mapping[str, str],
) -> Difference:
    """Return one difference in words.

    Args:
        key: slot of the reference and index of the field.
        value: what the node has.
        usual: what it is compared with.
        share: part of the nodes that have `majority`.
        addresses: slot -> address on the node.
        reference: slot -> address on the reference, for devices that the node has not.
        mapping: slot of the node -> slot of the reference, where they differ (align.py).
    """
    slot, i = key
    kind = kind_of(slot)
    known = {**reference, **{rename_slot(s, mapping): a for s, a in addresses.items()}}
    field = KINDS[kind][i] if i != WHOLE else Field(kind if kind != "pci" else "device", "hardware")
    unknown = {
        name: v.removeprefix(UNKNOWN)
        for name, v in (("value", value), ("majority", usual))
        if isinstance(v, str) and v.startswith(UNKNOWN)
    }
    return Difference(
        section=field.section,
        device=place(slot, known),
        field=field.name,
        value=_with_places(value, known),
        majority=_with_places(usual, known),
        share=share,
        comparable=not unknown,
        unknown=unknown,
        path=path(slot, field.name if i != WHOLE else "", known),
        source=_source(slot, field, known),
        slot=slot,
    )


def _with_places(value: Value, addresses: Mapping[str, str]) -> str:
    text = shown(value)
    if "<" in text:
        for slot in sorted(addresses, key=len, reverse=True):
            text = text.replace(f"<{slot}>", place(slot, addresses))
    return text


def path(slot: str, field: str, addresses: Mapping[str, str]) -> str:
    """Return where a value stands in the JSON report, as JSONPath."""
    kind = kind_of(slot)
    name = slot[len(kind) + 1 :]
    dot = f".{field}" if field else ""
    if kind == "node":
        if field in ("gpus", "nics", "numa_nodes"):
            return field
        return f"{_HOST_PARTS.get(field, 'host')}.{field}"
    if kind == "port":
        nic, _, port = name.partition("/")
        return f"{_by_address('nics', nic, addresses)}.ports[?port=={port}]{dot}"
    if kind == "path":
        a, _, b = name.partition("-")
        return f"paths[?from=='{addresses.get(a, '')}' && to=='{addresses.get(b, '')}']{dot}"
    if kind == "pci":
        return _by_address("pci", name or slot, addresses) + dot
    if kind in _ARRAYS:
        return _by_address(_ARRAYS[kind], slot, addresses) + dot
    return {
        "interface": f"interfaces[?name=='{name}']{dot}",
        "numa": f"numa_nodes[?node=={name}]{dot}",
        "module": f"host.modules.{name}",
        "software": f"software.{name}",
        "setting": f"nccl.settings[?name=='{name}'].value",
        "probe": f"probes[?name=='{name}'].state",
        "inventory": "pci[*].vendor_id, device_id",
    }.get(kind, "")


def _by_address(array: str, slot: str, addresses: Mapping[str, str]) -> str:
    return f"{array}[?address=='{addresses.get(slot, '')}']"


def _source(slot: str, field: Field, addresses: Mapping[str, str]) -> str:
    kind = kind_of(slot)
    name = slot[len(kind) + 1 :]
    device, _, port = (name or slot).partition("/")
    text = field.source.replace("{address}", addresses.get(device, addresses.get(slot, "?")))
    return text.replace("{name}", name).replace("{port}", port)
