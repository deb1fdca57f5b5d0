"""What a scaling run is asked for, and what comes of it."""

from __future__ import annotations

import msgspec

from topocheck.model.measurement import Backend, Collective, Fit, Hook, Measurement, NotMeasured
from topocheck.model.version import SCHEMA_VERSION
from topocheck.tests_live.launch.training_job import HOOKS, MIB


class ScaleOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is run.

    Attributes:
        backends: nccl, gloo, mpi.
        ranks: most ranks; 0 for all of the launcher, else one per GPU, or 2.
        gradient_bytes: 0 for 25 MiB of host memory, 256 MiB of a GPU's.
        collective_bytes: 0 for as many as the gradients.
        batch: samples a rank takes in one step.
        hooks: compression, of HOOKS.
        buckets_mib: bucket sizes of the sweep; None for a usual set, empty for no sweep.
        digits, patterns: whether to run them.
        samples, sample_s: timed samples of each row, seconds of one.
        limit_s: of one step, and of the digits' epochs; what takes longer is stopped.
        quick: sweep every other bucket size, and none over Gloo on GPU memory, where a step takes the longest.
    """

    backends: tuple[Backend, ...] = ()
    ranks: int = 0
    collective: Collective = "all_reduce"
    collective_bytes: int = 0
    gradient_bytes: int = 0
    batch: int = 0
    hooks: tuple[Hook, ...] = HOOKS
    buckets_mib: tuple[float, ...] | None = None
    digits: bool = True
    patterns: bool = True
    samples: int = 5
    sample_s: float = 0.2
    limit_s: float = 30.0
    quick: bool = False


class JobLayout(msgspec.Struct, frozen=True, kw_only=True):
    """What the ranks stand on.

    Attributes:
        ranks: all there are.
        nodes: how many nodes they are on; ranks_per_node where each has the same, in blocks, else 0.
        cores: CPUs this process may use on its node.
        gpus: addresses of the GPUs of this node that take part, one per local rank.
        launcher: empty where topocheck starts the ranks itself.
        ranks_authenticated_by: munge, or where else the secret of a launcher's job came from; `none` where nothing
            shows that they belong to it.
    """

    ranks: int
    nodes: int = 1
    ranks_per_node: int = 0
    cores: int = 1
    gpus: tuple[str, ...] = ()
    launcher: str = ""
    ranks_authenticated_by: str = ""


class ScalePoint(msgspec.Struct, frozen=True, kw_only=True):
    """One number of ranks on one curve.

    Attributes:
        curve: what is scaled: `all_reduce`, `training step`.
        size_bytes: of the collective, as nccl-tests counts it; of the gradients.
        batch: samples a rank takes in one step; None for a collective.
        nodes: nodes that these ranks fill; None where they fill no whole number of nodes.
        rate, unit: samples/s of all ranks together, or busbw in GB/s.
        speed_up, efficiency: of a step, over one rank; of a collective, busbw over that of the fewest ranks. None where
            no claim is made.
        oversubscribed: more ranks of host memory than cores.
    """

    curve: str
    backend: str
    device: str
    ranks: int
    size_bytes: int
    batch: int | None = None
    nodes: int | None = None
    time_us: float
    spread: float = 0.0
    rate: float
    unit: str
    speed_up: float | None = None
    efficiency: float | None = None
    oversubscribed: bool = False


class TrainingRow(msgspec.Struct, frozen=True, kw_only=True):
    """Serial, parallel or compressed training, side by side. None where it was not measured; `reason` says it."""

    backend: str
    device: str
    ranks: int
    gradient_bytes: int
    batch: int
    hook: str
    step_us: float | None = None
    step_ratio: float | None = None
    gradient_error: float | None = None
    accuracy: float | None = None
    epoch_us: float | None = None
    reason: str = ""


class BucketPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One bucket size."""

    backend: str
    device: str
    ranks: int
    gradient_bytes: int
    batch: int
    bucket_mib: float
    step_us: float
    spread: float = 0.0
    predicted_us: float | None = None


class BucketSweep(msgspec.Struct, frozen=True, kw_only=True):
    """The sweep of one backend: the fastest size, the one the cost model predicted, or why it predicts none."""

    backend: str
    device: str
    ranks: int
    gradient_bytes: int
    batch: int
    best_mib: float
    predicted_mib: float | None = None
    reason: str = ""
    text: str = ""


class PatternRow(msgspec.Struct, frozen=True, kw_only=True):
    """One exchange of all gradients; `reason` says what a prediction lacks."""

    backend: str
    device: str
    ranks: int
    size_bytes: int
    pattern: str
    time_us: float
    predicted_us: float | None = None
    reason: str = ""
    verified: bool = True


class ScaleReport(msgspec.Struct, frozen=True, kw_only=True):
    """A scaling run; `topocheck scale --format json` prints it."""

    schema_version: str = SCHEMA_VERSION
    taken_at: str = ""
    job: JobLayout
    options: ScaleOptions
    machine: dict[str, str] = {}
    software: dict[str, str] = {}
    method: str = ""
    points: tuple[ScalePoint, ...] = ()
    training: tuple[TrainingRow, ...] = ()
    buckets: tuple[BucketPoint, ...] = ()
    sweeps: tuple[BucketSweep, ...] = ()
    patterns: tuple[PatternRow, ...] = ()
    fits: tuple[Fit, ...] = ()
    not_applicable: tuple[str, ...] = ()
    not_measured: tuple[NotMeasured, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    wall_s: float = 0.0


DEFAULT_HOST_BYTES = 25 * MIB
DEFAULT_GPU_BYTES = 256 * MIB
