"""The NVLink fabric: registration of the GPUs, the fabric manager, IMEX."""

from __future__ import annotations

from collections.abc import Iterator

from topocheck.checks.needs import unless_lost
from topocheck.checks.registry import Context, check, not_applicable
from topocheck.checks.shared.common import is_guest, listed, living, named, pci_devices, quote
from topocheck.checks.shared.fixes import Fix, first_fitting, in_guest, on_node
from topocheck.checks.sources import GPUS, Needs
from topocheck.knowledge.fabric_health import troubles
from topocheck.model.base import Evidence, Finding, Missing, Reason, State, is_lost, known
from topocheck.model.gpu import NvLink, NvmlGpu
from topocheck.topology.inventory import nvswitches
from topocheck.topology.paths import product_of
from topocheck.topology.switch_nics import lives_behind_hidden_switches
from topocheck.topology.types import Gpu

_CALL = "DeviceGetGpuFabricInfoV"
_UNFINISHED = ("Not Started", "In Progress")
_NONE = "Not Supported"
_RESET = "the GPUs may need a reset after it, which ends all that runs on them"
_INSTALL = (
    "install nvidia-fabricmanager in exactly the driver's version, start it (systemctl start nvidia-fabricmanager) "
    f"and check its log; {_RESET}"
)
_RESTART = (
    "nvidia-fabricmanager is running: check its log (/var/log/fabricmanager.log) for what it says of these GPUs and of "
    "partitions, drain the node, restart it and reset all GPUs together (nvidia-smi -r, ends all that runs on them)"
)
_RACK = (
    "check the fabric manager of the rack, which runs on its switch trays, and nvidia-imex here; then reset the "
    "GPUs, which ends all that runs on them"
)


_ALONE = (
    "drain the node, restart nvidia-fabricmanager and reset all GPUs together (nvidia-smi -r, ends all that runs on "
    "them), and check the fabric manager's log for this GPU; if it stays outside, power-cycle the node, then service"
)
_ALONE_IN_GUEST = (
    "restart nvidia-fabricmanager where it runs in this guest, and the guest; if the GPU stays outside, have the "
    "host's administrator reset all GPUs of the node and check the fabric manager and the partition of this guest"
)
_HOST = (
    "the NVSwitches are not in this guest: the fabric manager of the host, or of its service VM, sets them up; ask the "
    "host's administrator to check its log and the partition of this guest"
)
_SUBNET = (
    "install nvidia-fabricmanager in exactly the driver's version and nvlsm, start nvidia-fabricmanager (it starts "
    "nvlsm, the subnet manager of the switches) and check both logs"
)
_SUBNET_MODULES = ("mlx5_ib", "ib_umad")
"""What NVLSM needs to reach the switches of an HGX B200 or B300: their ConnectX functions as RDMA devices, and the
kernel's interface for management datagrams (NVIDIA Fabric Manager User Guide)."""


def _versions(context: Context) -> tuple[str, str] | None:
    """Return (fabric manager's version, driver's) where both are known and differ."""
    own, driver = context.node.software.versions.get("fabric_manager"), context.node.nvml.driver_version
    return (own, driver) if own is not None and isinstance(driver, str) and own != driver else None


def _active(context: Context) -> bool:
    """Tell whether the fabric manager is seen to run."""
    system = context.node.system
    return "active" in (system.fabric_manager, system.services.get("nvidia-fabricmanager"))


def _start(context: Context) -> str:
    """Return what to do about the fabric manager: the first that can work here."""
    return (
        first_fitting(
            context,
            Fix(_RESTART, (_active, lambda c: _versions(c) is None)),
            Fix(_INSTALL),
        )
        or _INSTALL
    )


def _unloaded(context: Context) -> tuple[str, ...]:
    """Return the modules without which nobody reaches hidden NVSwitches, where it is known that they are not loaded."""
    system = context.node.system
    if not system.modules or not any(lives_behind_hidden_switches(g) for g in _gpus(context)):
        return ()
    lost = any(context.node.is_lost(q) for q in ("lines:/proc/modules", "list:/sys/module"))
    if lost or (is_guest(context) and not context.topology.switch_functions):
        return ()
    return tuple(m for m in _SUBNET_MODULES if m not in system.modules)


def _way_back(context: Context, gpu: Gpu) -> str:
    """Return what to do about a GPU that is not registered: the first that can work on this machine."""
    if _multi_node(gpu):
        return _RACK
    if any(_registered(g) for g in _gpus(context)):
        return _ALONE_IN_GUEST if in_guest(context) else _ALONE
    unloaded = _unloaded(context)
    if unloaded:
        return (
            f"modprobe {' '.join(unloaded)} (persistently: a line for each in /etc/modules-load.d/nvlsm.conf), then "
            "systemctl restart nvidia-fabricmanager, which starts nvlsm, the subnet manager of the switches"
        )
    hidden = lives_behind_hidden_switches(gpu)
    behind = context.topology.switch_functions if hidden else nvswitches(pci_devices(context).values())
    if not behind and in_guest(context):
        return _HOST
    return _SUBNET if hidden else _start(context)


def _gpus(context: Context) -> list[Gpu]:
    return [g for g in living(context) if g.nvml is not None]


def _multi_node(gpu: Gpu) -> bool:
    product = product_of(gpu)
    return product is not None and product.multi_node_fabric


def _state(gpu: Gpu) -> str | Missing:
    return gpu.nvml.fabric_state if gpu.nvml is not None else Missing(Reason.ABSENT)


def _registered(gpu: Gpu) -> bool:
    """Tell whether a GPU is in the fabric: completed, and with success."""
    return gpu.nvml is not None and gpu.nvml.fabric_state == "Completed" and gpu.nvml.fabric_status == "Success"


def _evidence(gpus: list[Gpu]) -> tuple[Evidence, ...]:
    return tuple(e for g in gpus[:4] if g.nvml is not None for e in quote(g.nvml, _CALL, g.nvml.fabric_state))


@check(
    "nvlink.fabric-not-ready",
    title="A GPU is not registered with the NVLink fabric",
    severity=State.FAIL,
    reads=("NVML DeviceGetGpuFabricInfoV (state, status, cluster, clique, health)", "/sys/module/{mlx5_ib,ib_umad}"),
    needs=Needs((*GPUS, "gpu name", "fabric"), ("cuda",)),
)
def fabric_not_ready(context: Context) -> Iterator[Finding]:
    """A GPU is not registered with the NVLink fabric.

    Looks at:
        State and status of each GPU's registration: only Completed together with Success counts. On products of a
        multi-node fabric also the cluster and the clique, which must be set and equal on the node; and the health
        that newer drivers sum up.

    Why it matters:
        CUDA does not start (error 802, "system not yet initialized") or NVLink peers are missing, while every GPU by
        itself looks healthy.

    Fix:
        Start the fabric manager in the driver's version (on multi-node products IMEX too), check its log, and reset
        the GPUs. On B200 and B300 the switches are not on the PCI bus: nvlsm reaches them through ConnectX functions
        of the baseboard, which needs mlx5_ib and ib_umad.

    Does not apply:
        To products without a fabric, to a single GPU that knows none (passed into a guest, or in a workstation), and to
        boards whose GPUs are joined to each other without switches (GB200 NVL4). On single-node
        products a zero cluster is normal, and so is clique 0 in a cluster that has a name.
    """
    gpus = _gpus(context)
    if not any(known(_state(g)) or _multi_node(g) for g in gpus):
        raise not_applicable("no GPU of this node knows an NVLink fabric")
    reached = _multi_node(gpus[0]) and any(x.active is True for x in _links(gpus[0]))
    alone = len(gpus) == 1 and not nvswitches(pci_devices(context).values()) and not reached
    stuck = context.node.cuda.error and "SYSTEM_NOT_READY" in context.node.cuda.error
    if alone and not stuck and (isinstance(_state(gpus[0]), Missing) or _state(gpus[0]) != "Completed"):
        raise not_applicable("one GPU without NVSwitch has no peer to join")
    unloaded = _unloaded(context) if not any(_registered(g) for g in gpus) else ()
    cause = f"; {' and '.join(unloaded)} not loaded, so no subnet manager reaches the NVSwitches" if unloaded else ""
    for gpu in gpus:
        problem = _problem(gpu, gpus)
        if problem is not None:
            state, title = problem
            yield Finding(
                state=state,
                subject=named(gpu),
                devices=(gpu.address,),
                title=title + cause,
                consequence="its traffic over NVLink is slower, and collectives run at its speed"
                if _registered(gpu)
                else "CUDA does not start on it (error 802), or it has no NVLink peers",
                evidence=_evidence([gpu]) + tuple(Evidence(f"/sys/module/{m}", "(absent)") for m in unloaded),
                rule="state Completed and status Success",
                fix=on_node(context, _way_back(context, gpu)),
            )
    yield from _identity(gpus)


def _links(gpu: Gpu) -> tuple[NvLink, ...]:
    return gpu.nvml.nvlinks if gpu.nvml is not None else ()


def _problem(gpu: Gpu, gpus: list[Gpu]) -> tuple[State, str] | None:
    nvml, state = gpu.nvml, _state(gpu)
    if nvml is None:
        return None
    if isinstance(state, Missing) and is_lost(state):
        meant = _multi_node(gpu) or any(_registered(g) for g in gpus)
        return (State.UNKNOWN, f"whether it is registered could not be read: {state}") if meant else None
    if isinstance(state, Missing) or state == _NONE:
        if _multi_node(gpu) and not any(x.active is True and x.remote_type == "gpu" for x in _links(gpu)):
            return State.FAIL, "part of a multi-node NVLink product, but reports no fabric"
        if any(_registered(g) for g in gpus):
            return State.FAIL, "it knows no NVLink fabric, its siblings are registered"
        return None
    if state in _UNFINISHED:
        return State.FAIL, f"registration with the NVLink fabric not finished: {state}"
    status = nvml.fabric_status
    if isinstance(status, Missing):
        return State.UNKNOWN, f"NVLink fabric state {state}, status not readable"
    if status != "Success":
        return State.FAIL, f"NVLink fabric state {state}, status {status}"
    return _health(nvml)


def _health(nvml: NvmlGpu) -> tuple[State, str] | None:
    """Judge the health of a registered GPU: the driver's summary, and the mask behind it."""
    summary, mask = nvml.fabric_health_summary, nvml.fabric_health_mask
    found = troubles(mask, healthy=summary == "Healthy") if known(mask) else ()
    said = "".join(f"; {t.text}" for t in found)
    if summary == "Unhealthy":
        return State.FAIL, f"it is registered, and the fabric calls it unhealthy{said}"
    if summary == "Limited Capacity" or found:
        state = State.FAIL if any(t.weight == "fail" for t in found) else State.WARN
        words = "with limited capacity" if summary == "Limited Capacity" else "with trouble in its health mask"
        return state, f"it is registered, {words}{said}"
    return None


def _identity(gpus: list[Gpu]) -> Iterator[Finding]:
    """Compare cluster and clique, where a cluster is meant: a multi-node product, or a cluster that is not zero."""
    inside = [g for g in gpus if _registered(g)]
    told = {g.address: (str(g.nvml.fabric_cluster_uuid), g.nvml.fabric_clique) for g in inside if g.nvml is not None}
    meant = any(_multi_node(g) for g in inside) or any(not _zero(c) for c, _ in told.values())
    if not inside or not meant:
        return
    if len(set(told.values())) > 1:
        title = "the GPUs of this node are in different clusters or cliques of the NVLink fabric"
    elif any(_multi_node(g) and (_zero(told[g.address][0]) or told[g.address][1] == 0) for g in inside):
        title = "the GPUs are registered without a cluster or clique"
    else:
        return
    yield Finding(
        state=State.FAIL,
        subject="node",
        title=title,
        consequence="multi-node NVLink does not work between them; jobs fall back to the network or fail",
        evidence=_evidence(inside),
        rule="one cluster and one clique on a node; neither of them zero on products of a multi-node fabric",
        fix="check the logs of the fabric manager of the rack and of nvidia-imex; then reset the GPUs",
    )


def _zero(cluster: str) -> bool:
    return set(cluster) <= {"0", "-"}


@check(
    "nvlink.fabric-manager",
    title="The fabric manager is not running, or not in the driver's version",
    severity=State.FAIL,
    reads=("systemctl is-active nvidia-fabricmanager", "nv-fabricmanager --version", "NVSwitches on the PCI bus"),
    needs=Needs(GPUS, ("fabric", "services", "cuda")),
)
def fabric_manager(context: Context) -> Iterator[Finding]:
    """The fabric manager is not running, or not in the driver's version.

    Looks at:
        The service nvidia-fabricmanager and its version, on machines with NVSwitches on the PCI bus.

    Why it matters:
        Without it the switches are not set up: CUDA does not start (error 802). It refuses to start in any version
        but the driver's, which is what happens when only one of the two packages is upgraded.

    Fix:
        Install the package of the driver's version and start the service. Pin both packages together.

    Does not apply:
        Without NVSwitches on the bus: bridged cards and direct meshes need no fabric manager, and one that fails
        there is harmless (a note). One that runs in a container has no unit; there the GPUs' registration counts.
    """
    switches = nvswitches(pci_devices(context).values())
    if not switches:
        needless = _needless(context)
        if needless is None:
            raise not_applicable("no NVSwitch on the PCI bus, so no fabric manager is needed")
        yield needless
        return
    gpus = _gpus(context)
    if not gpus:
        raise not_applicable("no driven GPU on this node")
    system = context.node.system
    ready = all(_registered(g) for g in gpus) or known(context.node.cuda.devices)
    # Where nobody could tell whether the fabric works, its manager alone makes no failure.
    ready = ready or unless_lost(context, State.FAIL, "fabric", "cuda") is State.UNKNOWN
    unit = system.services.get("nvidia-fabricmanager")
    service = system.fabric_manager if known(system.fabric_manager) else (unit if unit is not None else None)
    seen = (Evidence("PCI", f"{len(switches)} NVSwitches, first {switches[0].address}"),)
    said = quote(system, "nvidia-fabricmanager", service) if service is not None else ()
    differs = _versions(context)
    versions = (Evidence("nv-fabricmanager --version", differs[0]), Evidence("driver", differs[1])) if differs else ()
    other = f"; it is version {differs[0]}, the driver {differs[1]}" if differs else ""
    if service == "failed" or (service in ("inactive", "not-found") and not ready):
        yield Finding(
            state=State.WARN if ready else State.FAIL,
            subject="node",
            title=f"the fabric manager is {service} on a machine with {len(switches)} NVSwitches{other}",
            consequence="CUDA does not start (error 802)" if not ready else "works until the next reset or reboot",
            evidence=(*said, *seen, *versions, *_evidence(gpus[:1])),
            rule="NVSwitches need nvidia-fabricmanager active, in the driver's version",
            fix=on_node(context, _start(context)),
        )
    elif differs:
        yield Finding(
            state=State.WARN if ready else State.FAIL,
            subject="node",
            title=f"the fabric manager is version {differs[0]}, the driver {differs[1]}",
            consequence="the fabric manager will not start with this driver; CUDA then fails with error 802",
            evidence=(*versions, *seen),
            rule="both must be of one version",
            fix=on_node(context, _start(context)),
        )
    elif service is None and not ready:
        yield Finding(
            state=State.UNKNOWN,
            subject="node",
            title="whether the fabric manager runs cannot be seen, and nothing shows that the fabric works",
            evidence=(*seen, *_evidence(gpus[:1])),
            rule="the service, or a registration with success, must be seen",
            fix="systemctl status nvidia-fabricmanager, on the host",
        )


def _needless(context: Context) -> Finding | None:
    """A fabric manager that fails on a machine without NVSwitches: harmless, and people spend days on it."""
    gpus = _gpus(context)
    service = context.node.system.services.get("nvidia-fabricmanager")
    fabric = any(known(_state(g)) or _multi_node(g) or lives_behind_hidden_switches(g) for g in gpus)
    if service != "failed" or fabric or not gpus or is_guest(context):
        return None
    differs = _versions(context)
    versions = f" (version {differs[0]}, the driver is {differs[1]})" if differs else ""
    return Finding(
        state=State.NOTE,
        subject="node",
        title=f"nvidia-fabricmanager is failed{versions}, and no NVSwitch is on the PCI bus: it is not needed here",
        consequence="none: cards joined by bridges, or not at all, work without it",
        evidence=(
            *quote(context.node.system, "nvidia-fabricmanager", service),
            Evidence("PCI", "no NVSwitch"),
            *((Evidence("nv-fabricmanager --version", differs[0]),) if differs else ()),
        ),
        rule="a fabric manager is for NVSwitches alone",
        fix="systemctl disable nvidia-fabricmanager, or remove the package",
    )


def _two_imex(context: Context) -> Finding:
    """On a node of Kubernetes the DRA driver starts IMEX for each compute domain, and the host's must not run."""
    return Finding(
        state=State.WARN,
        subject="node",
        title="the host's nvidia-imex is active on a Kubernetes node, where NVIDIA's DRA driver starts its own daemon",
        consequence="with both, the compute domain of a job never gets ready",
        evidence=(
            *quote(context.node.system, "nvidia-imex", "active"),
            Evidence("/var/lib/kubelet", "(there)"),
        ),
        rule="one IMEX daemon on a node",
        fix="systemctl disable --now nvidia-imex, where the DRA driver (ComputeDomain) is used; without it keep the "
        "host's service and leave the driver's compute domains off",
    )


@check(
    "nvlink.imex",
    title="IMEX is not ready on a multi-node NVLink product",
    severity=State.WARN,
    reads=("/dev/nvidia-caps-imex-channels", "systemctl is-active nvidia-imex", "/var/lib/kubelet"),
    needs=Needs((*GPUS, "gpu name"), ("services", "kubelet")),
)
def imex(context: Context) -> Iterator[Finding]:
    """IMEX is not ready on a multi-node NVLink product.

    Looks at:
        The service nvidia-imex and the channel files under /dev/nvidia-caps-imex-channels.

    Why it matters:
        Memory is shared between nodes through IMEX. Without it, NCCL says that multi-node NVLink is "available but
        not working" and jobs over several nodes fail or use the network.

    Fix:
        On a Kubernetes node, where the DRA driver starts a daemon for each compute domain, switch the host's service
        off. Elsewhere start nvidia-imex with the node list of the NVLink domain, make a channel, and pass it into the
        container.
        NCCL_MNNVL_ENABLE=0 goes on without, at the network's rate.

    Does not apply:
        To products without a multi-node fabric. Jobs on one node need no IMEX, so a missing channel is a note.
    """
    gpus = [g for g in _gpus(context) if _multi_node(g)]
    if not gpus:
        raise not_applicable("no product with multi-node NVLink")
    system = context.node.system
    service = system.services.get("nvidia-imex")
    channels = system.imex_channels
    if service in ("failed", "inactive"):
        yield Finding(
            state=State.WARN if service == "failed" else State.NOTE,
            subject="node",
            title=f"nvidia-imex is {service}",
            consequence="jobs over several nodes cannot use NVLink between them",
            evidence=quote(system, "nvidia-imex", service),
            rule="multi-node NVLink needs nvidia-imex active",
            fix=first_fitting(
                context,
                Fix(
                    "none with NVIDIA's DRA driver (ComputeDomain), which starts a daemon for each job; without it "
                    "systemctl enable --now nvidia-imex",
                    (lambda _: system.kubelet is True and service == "inactive",),
                ),
                Fix("check /var/log/nvidia-imex.log and nodes_config.cfg, then systemctl restart nvidia-imex"),
            ),
        )
    if service == "active" and system.kubelet is True:
        yield _two_imex(context)
    absent = isinstance(channels, Missing) and channels.reason is Reason.ABSENT
    if absent or channels == ():
        yield Finding(
            state=State.NOTE,
            subject="node",
            title=f"no IMEX channel here, on a node of {listed(sorted({str(g.name) for g in gpus}))}",
            consequence="a job over several nodes would not use NVLink between them",
            evidence=quote(system, "/dev/nvidia-caps-imex-channels", channels or "(none)"),
            rule="a channel file is needed for sharing memory between nodes",
            fix=on_node(context, "nvidia-modprobe -c 0, and pass /dev/nvidia-caps-imex-channels into the container"),
        )
