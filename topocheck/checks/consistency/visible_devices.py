"""Which GPUs a process sees, and in which order: CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

from topocheck.checks.needs import unless_lost
from topocheck.checks.registry import Context, Scope, check, not_applicable
from topocheck.checks.shared.common import listed
from topocheck.checks.shared.fixes import Fix, first_fitting, in_container, is_root, never
from topocheck.checks.sources import Needs
from topocheck.model.base import Evidence, Finding, Missing, State, is_digits, small_number
from topocheck.model.gpu import NvmlGpu
from topocheck.model.node import Node
from topocheck.model.system import Setting

_VISIBLE, _ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"


class Entry(msgspec.Struct, frozen=True):
    """One entry of CUDA_VISIBLE_DEVICES: what it stands for, or why it stands for nothing."""

    text: str
    uuid: str = ""
    address: str = ""
    slice_name: str = ""
    problem: str = ""


def resolve(value: str, gpus: tuple[NvmlGpu, ...]) -> tuple[Entry, ...]:
    """Return the entries of CUDA_VISIBLE_DEVICES up to the first invalid one, that one included.

    An entry is an index, or a UUID or a unique beginning of one (`GPU-8c7c`, `MIG-...`). An invalid entry hides
    itself and all after it (CUDA C++ Programming Guide, CUDA Environment Variables). Indices are taken in the order
    of the bus; on GPUs of different models CUDA's own order may be another (`consistency.device-order`).
    """
    out: list[Entry] = []
    for part in (p.strip() for p in value.split(",")) if value.strip() else ():
        entry = _one(part, gpus)
        out.append(entry)
        if entry.problem:
            break
    return tuple(out)


def hidden(node: Node) -> dict[str, str]:
    """Return the address of each GPU that CUDA_VISIBLE_DEVICES hides from this process, and why; the text is one."""
    setting = next((s for s in node.settings.related if s.name == _VISIBLE and s.in_force), None)
    if setting is None or isinstance(node.nvml.gpus, Missing):
        return {}
    gpus = node.nvml.gpus
    shown = {e.address for e in resolve(setting.value, gpus) if not e.problem}
    addresses = [g.address for g in gpus if isinstance(g.address, str) and g.address not in shown]
    what = "every GPU" if len(addresses) == len(gpus) else f"{len(addresses)} of {len(gpus)} GPUs"
    why = f"{_VISIBLE}={setting.value!r:.60} hides {what} from CUDA; unset it, or list the GPUs"
    return dict.fromkeys(addresses, why)


def _one(text: str, gpus: tuple[NvmlGpu, ...]) -> Entry:
    if text.upper().startswith(("GPU-", "MIG-")):
        return _by_uuid(text, gpus)
    if not is_digits(text):
        return Entry(text, problem="neither an index nor a UUID")
    index = small_number(text)
    if index is None or index >= len(gpus):
        return Entry(text, problem=f"there are {len(gpus)} GPUs")
    return _whole(text, gpus[index])


def _whole(text: str, gpu: NvmlGpu) -> Entry:
    uuid = gpu.uuid if isinstance(gpu.uuid, str) else str(gpu.index)
    return Entry(text, uuid=uuid, address=gpu.address if isinstance(gpu.address, str) else "")


def _by_uuid(text: str, gpus: tuple[NvmlGpu, ...]) -> Entry:
    low = text.lower()
    found = [_whole(text, g) for g in gpus if isinstance(g.uuid, str) and g.uuid.lower().startswith(low)]
    for g in gpus:
        for m in g.mig_instances:
            if m.uuid.lower().startswith(low):
                name = m.name if isinstance(m.name, str) else "MIG slice"
                found.append(msgspec.structs.replace(_whole(text, g), uuid=m.uuid, slice_name=name))
    if len(found) == 1:
        return found[0]
    return Entry(text, problem="no such GPU here" if not found else f"{len(found)} GPUs begin so")


def _setting(context: Context, name: str) -> Setting | None:
    return next((s for s in context.node.settings.related if s.name == name and s.in_force), None)


@check(
    "consistency.visible-devices",
    title="CUDA_VISIBLE_DEVICES does not mean what it seems to",
    severity=State.FAIL,
    reads=("environment CUDA_VISIBLE_DEVICES", "NVML DeviceGetUUID, MIG devices"),
    needs=Needs(("settings", "nvml"), ("mig", "gpu uuid")),
    scope=Scope.PROCESS,
)
def visible_devices(context: Context) -> Iterator[Finding]:
    """CUDA_VISIBLE_DEVICES does not mean what it seems to.

    Looks at:
        Each entry of CUDA_VISIBLE_DEVICES: an index, a UUID or a unique beginning of one, a MIG slice; and whether an
        index names a GPU that MIG splits.

    Why it matters:
        An entry that CUDA does not understand hides itself and every entry after it, silently: `0,7,1` on two
        GPUs leaves one. An entry that stands twice makes CUDA fail. An empty value hides all GPUs.

    Fix:
        Correct the list, best with UUIDs (`nvidia-smi -L`), which do not depend on any order.

    Does not apply:
        Where it is not set, and where the process is not the job (prolog, health check, timer).
    """
    setting = _setting(context, _VISIBLE)
    if setting is None:
        raise not_applicable("CUDA_VISIBLE_DEVICES is not set")
    gpus = context.node.nvml.gpus
    if isinstance(gpus, Missing):
        raise not_applicable("NVML does not answer, so the entries cannot be resolved")
    value = setting.value
    entries = resolve(value, gpus)
    seen = (Evidence(setting.source, f"{_VISIBLE}={value}"),)
    if not entries or value.strip() in ("-1", "NoDevFiles"):
        yield _finding(State.NOTE, f"{_VISIBLE}={value!r} hides every GPU", "programs here run without a GPU", seen)
        return
    good = [e for e in entries if not e.problem]
    bad = next((e for e in entries if e.problem), None)
    unlisted = [g for g in gpus if g.mig_untold is not None]
    if bad is not None and unlisted and bad.text.upper().startswith("MIG-"):
        yield _refused(context, bad, unlisted, seen)
    elif bad is not None:
        # A part of a GPU that was not listed looks like one that is not there.
        state = unless_lost(
            context, State.WARN if good else State.FAIL, "mig" if bad.text.upper().startswith("MIG-") else "nvml"
        )
        left = listed(e.address or e.uuid for e in good) or "none"
        yield _finding(
            state,
            f"entry {bad.text!r} of {_VISIBLE} is invalid ({bad.problem}): it and all after it are hidden; visible: "
            f"{left}",
            "a program sees fewer GPUs than were asked for, without any message"
            if good
            else "CUDA finds no GPU, and programs end or compute on the CPU",
            seen,
        )
    twice = [u for u, n in Counter(e.uuid for e in good).items() if n > 1]
    if twice:
        yield _finding(
            State.FAIL, f"{listed(twice)} appears more than once in {_VISIBLE}", "CUDA refuses to start", seen
        )
    split = _split_by_number(good, gpus)
    if split and bad is None and not twice:
        names = listed(f"{e.text} (GPU {g.index}, {len(g.mig_instances)} slices)" for e, g in split)
        yield msgspec.structs.replace(
            _finding(
                State.WARN,
                f"{_VISIBLE}={value!r} names GPUs that MIG splits by number: {names}",
                "CUDA uses only the first slice of the first of them, so ranks share it",
                seen
                + tuple(Evidence(f"MIG devices of GPU {g.index}", str(len(g.mig_instances))) for _, g in split[:4]),
            ),
            rule="a MIG device is named by its UUID, and a process uses one (NVIDIA MIG User Guide)",
            fix=f"set {_VISIBLE} to one MIG-UUID of nvidia-smi -L for each process",
        )


def _split_by_number(entries: list[Entry], gpus: tuple[NvmlGpu, ...]) -> list[tuple[Entry, NvmlGpu]]:
    """Return the entries that name a whole GPU which MIG splits into several slices, with that GPU."""
    by_uuid = {g.uuid if isinstance(g.uuid, str) else str(g.index): g for g in gpus}
    found = [(e, by_uuid[e.uuid]) for e in entries if not e.slice_name and e.uuid in by_uuid]
    return [(e, g) for e, g in found if g.mig_current is True and len(g.mig_instances) > 1]


def _refused(context: Context, bad: Entry, gpus: list[NvmlGpu], seen: tuple[Evidence, ...]) -> Finding:
    """Return the finding about a slice that NVML does not list here: whether it is there is not known."""
    why = next(g.mig_untold for g in gpus)
    parent = next((g for g in gpus if isinstance(g.uuid, str) and _placement(bad.text, g.uuid)), None)
    where = f" (on GPU {parent.index}, {parent.address})" if parent is not None else ""
    return Finding(
        state=State.UNKNOWN,
        subject="process",
        title=f"whether {bad.text} of {_VISIBLE}{where} is here is not known: NVML does not list MIG devices ({why})",
        consequence="which part of which GPU this job has is not judged",
        evidence=seen + tuple(e for g in gpus[:2] for e in _mig_evidence(g)),
        rule="the MIG devices of a GPU can be listed",
        fix=first_fitting(context, *_MIG),
    )


_MIG = (
    Fix(
        "run topocheck on the node; or start the container with NVIDIA_MIG_MONITOR_DEVICES=all and CAP_SYS_ADMIN, "
        "which lets it see the slices of every tenant",
        (in_container,),
    ),
    Fix(
        "run topocheck as root, or give the user access to /dev/nvidia-caps (the MIG monitor capability)",
        (never(is_root),),
    ),
    Fix("run topocheck where root has CAP_SYS_ADMIN: this process lacks it, or a security module refuses it"),
)


def _placement(text: str, uuid: str) -> bool:
    """Tell whether an entry of the older form `MIG-GPU-UUID/GI/CI` is a part of the GPU with this UUID."""
    name, _, place = text.partition("/")
    return bool(place) and name.upper().removeprefix("MIG-") == uuid.upper()


def _mig_evidence(g: NvmlGpu) -> tuple[Evidence, ...]:
    asked = next((name for name in g.raw if name.startswith("DeviceGetMigDeviceHandleByIndex")), "")
    return g.evidence(asked, "DeviceGetMaxMigDeviceCount")


def _finding(state: State, title: str, consequence: str, evidence: tuple[Evidence, ...]) -> Finding:
    return Finding(
        state=state,
        subject="process",
        title=title,
        consequence=consequence,
        evidence=evidence,
        rule="an invalid entry ends the list (CUDA C++ Programming Guide, CUDA Environment Variables)",
        fix=f"set {_VISIBLE} to UUIDs from nvidia-smi -L, each once, or unset it",
    )


@check(
    "consistency.device-order",
    title="GPUs of different models, and CUDA's order is not that of the bus",
    severity=State.WARN,
    reads=("environment CUDA_DEVICE_ORDER, CUDA_VISIBLE_DEVICES", "NVML and CUDA device lists"),
    needs=Needs(("nvml", "gpu name", "settings")),
    scope=Scope.PROCESS,
)
def device_order(context: Context) -> Iterator[Finding]:
    """GPUs of different models, and CUDA's order is not that of the bus.

    Looks at:
        Whether the node has GPUs of different models while CUDA_DEVICE_ORDER is not PCI_BUS_ID.

    Why it matters:
        By default CUDA counts the fastest GPU first; NVML and nvidia-smi count by PCI address. The same number then
        means two GPUs: a job pinned to "GPU 3" may run on the display card.

    Fix:
        export CUDA_DEVICE_ORDER=PCI_BUS_ID for every job, or name GPUs by UUID.

    Does not apply:
        On GPUs of one model, where both orders agree, and where the order is set.
    """
    gpus = context.node.nvml.gpus
    if isinstance(gpus, Missing):
        raise not_applicable("NVML does not answer")
    names = Counter(str(g.name) for g in gpus if isinstance(g.name, str))
    if len(names) < 2:
        raise not_applicable("all GPUs are of one model")
    order, visible = _setting(context, _ORDER), _setting(context, _VISIBLE)
    if order is not None and order.value.strip() == "PCI_BUS_ID":
        return
    by_index = visible is not None and any(is_digits(p.strip()) for p in visible.value.split(","))
    cuda = context.node.cuda.devices
    proven = (
        "" if isinstance(cuda, Missing) or visible is None else _meant(visible.value, gpus, [d.address for d in cuda])
    )
    models = ", ".join(f"{n} x {name}" for name, n in names.items())
    yield Finding(
        state=unless_lost(context, State.WARN if by_index or visible is None else State.NOTE, "settings"),
        subject="process",
        title=f"different models ({models}) and CUDA_DEVICE_ORDER is {order.value if order else 'unset'}{proven}",
        consequence="a GPU number means one GPU to CUDA and another to nvidia-smi",
        evidence=tuple(Evidence(s.source, f"{s.name}={s.value}") for s in (order, visible) if s is not None)
        + tuple(Evidence(f"NVML index {g.index}", f"{g.address} {g.uuid} {g.name}") for g in gpus[:16])
        + (
            () if isinstance(cuda, Missing) else tuple(Evidence(f"CUDA {d.ordinal}", str(d.address)) for d in cuda[:16])
        ),
        rule="CUDA counts the fastest first unless CUDA_DEVICE_ORDER=PCI_BUS_ID; NVML counts by address",
        fix="export CUDA_DEVICE_ORDER=PCI_BUS_ID, or name GPUs by UUID",
    )


def _meant(value: str, gpus: tuple[NvmlGpu, ...], seen: list[str | Missing]) -> str:
    """Return what the first index means to each, where the two differ."""
    first = value.split(",")[0].strip()
    index = small_number(first)
    if index is None or index >= len(gpus) or not seen:
        return ""
    nvml = gpus[index].address
    return "" if nvml == seen[0] else f": {first} is {seen[0]} for CUDA and {nvml} for nvidia-smi"
