"""What a live test measured, and what was made of it.

A `Measurement` is a fact: what was moved, how often, by whom, and how long it took. An `Assessment` and a `Fit` are
made from measurements by pure functions. A field that does not apply to a kind of measurement (the collective of a
copy) is None; a field that could have been known and is not names its reason in `missing`.

Units: sizes are bytes, rates 10^9 bytes per second and per direction unless `direction` says `bidirectional`, times
microseconds where the name ends in `_us` and seconds where it ends in `_s`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from topocheck.model.base import Finding, State

CopyKind = Literal[
    "h2d", "d2h", "host_both", "h2d_all", "d2h_all", "p2p", "p2p_both", "p2p_round", "local", "latency",
    "latency_host", "host_memory",
]  # fmt: skip
TrainingKind = Literal["train_step", "backward", "epoch", "accuracy", "gradient_error", "pattern"]
Kind = Literal[CopyKind, "collective", TrainingKind, "lab"]
Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "send_recv"]
Backend = Literal["nccl", "gloo", "mpi"]
CopyDirection = Literal["unidirectional", "bidirectional", "aggregate"]
EngineName = Literal["driver", "torch", "host", "mpi4py"]
CallMode = Literal["back_to_back", "one_at_a_time", "graph"]
Hook = Literal["none", "fp16", "bf16", "fp8", "8bit_tensor", "8bit_channel", "topk", "sign", "powersgd"]
HOOK_NAMES: dict[Hook, str] = {
    "none": "fp32",
    "fp16": "fp16",
    "bf16": "bf16",
    "fp8": "float8",
    "8bit_tensor": "int8",
    "8bit_channel": "int8/512",
    "topk": "top 1 %",
    "sign": "1 bit",
    "powersgd": "PowerSGD",
}
"""Gradient compression as tables name it: float8 is e4m3, int8 has a scale per tensor and int8/512 one per 512
elements, 1 bit is the sign, PowerSGD is of rank 1; top 1 % and 1 bit feed back what they left out."""
Pattern = Literal["backend", "ring", "parameter_server"]
Budget = Literal["quick", "standard", "full"]

UNSTABLE = 0.05
"""Spread (interquartile range over median) beyond which a value is reported and not judged by its link."""


class Measurement(msgspec.Struct, frozen=True, kw_only=True, rename={"from_": "from"}):
    """One row of a live test.

    Attributes:
        id: names what was measured, the same from run to run on one machine; a baseline is matched by it.
        kind: a copy, a collective, what of a training step was timed, or a quantity of a lab (named by the id's end).
        from_, to: PCI addresses, or `host` for the memory of the node; empty for a collective.
        members: the devices or ranks that took part at once, where there are more than two.
        collective, backend: of a collective.
        direction: `bidirectional`: the rate is the sum of both; `aggregate`: the sum of all.
        issuer: whose stream carries the copy: `source` (push), `destination` (pull) or `host`; for a collective over
            NCCL who makes the calls: `NCCL called directly` or `torch.distributed`.
        engine: what made the copies or calls.
        allocator: what the buffers came from (`cuMemAlloc`, `cuMemHostAlloc`, `torch caching`, ...).
        peer_access: whether the pair had peer access when the copy ran.
        placement: where the host's pages were found to be, in words.
        pageable: the host's buffer is pageable memory, which the driver stages.
        far_node: the NUMA node of the host's buffer, where a node other than the GPU's own was asked for.
        mode: how calls of a collective followed each other; the hook or pattern of a training step.
        iterations: copies or calls in one sample.
        samples: one value per sample, in `unit`; median, min, max and spread (interquartile range over median) are
            of these.
        unit: `GB/s` or `us`.
        algbw_gb_s, busbw_gb_s: as nccl-tests defines them (its doc/PERFORMANCE.md).
        time_us: time of one copy or call, from the median.
        verified: True when every sample's data was compared and right, False when it was wrong, None when the row
            moves data that cannot be compared.
        wrong: what was wrong with the data.
        disturbed: what disturbed the row; empty for nothing seen.
        stop_reason: `stable`, `samples` (as many as were asked for) or `budget`.
        wall_s: the time the row took, everything included.
    """

    id: str
    kind: Kind
    from_: str = ""
    to: str = ""
    from_label: str = ""
    to_label: str = ""
    members: tuple[str, ...] = ()
    collective: Collective | None = None
    backend: Backend | None = None
    ranks: int | None = None
    direction: Literal[CopyDirection, "collective"] = "unidirectional"
    issuer: str | None = None
    engine: Literal[EngineName, ""] = ""
    allocator: str = ""
    peer_access: bool | None = None
    placement: str = ""
    pageable: bool = False
    far_node: int | None = None
    dtype: str | None = None
    in_place: bool | None = None
    mode: Literal[CallMode, Hook, Pattern] | None = None
    size_bytes: int = 0
    iterations: int = 0
    samples: tuple[float, ...] = ()
    median: float = 0.0
    min: float = 0.0
    max: float = 0.0
    spread: float = 0.0
    unit: str = "GB/s"
    algbw_gb_s: float | None = None
    busbw_gb_s: float | None = None
    bandwidth_gb_s: float | None = None
    latency_us: float | None = None
    time_us: float | None = None
    verified: bool | None = None
    wrong: str = ""
    disturbed: str = ""
    stop_reason: str = ""
    wall_s: float = 0.0
    notes: tuple[str, ...] = ()
    missing: dict[str, str] = msgspec.field(default_factory=dict)


def unsteady(m: Measurement) -> bool:
    """Tell whether something disturbed a row or its samples spread too far to be taken by themselves."""
    return bool(m.disturbed) or m.spread > UNSTABLE


def near_and_pinned(m: Measurement) -> bool:
    """Tell whether the host's buffers were pinned and on the GPU's own NUMA node, as a row that is judged has them."""
    return not m.pageable and m.far_node is None


class NotMeasured(msgspec.Struct, frozen=True, kw_only=True):
    """A row that was planned and not measured, and why.

    `required` says that the row was asked for and its absence leaves the question open (exit code 3): a hang, a
    broken call. A row left out by the budget or by what the machine cannot do is not required.
    """

    id: str
    reason: str
    required: bool = False
    next_step: str = ""


class Assessment(msgspec.Struct, frozen=True, kw_only=True):
    """What one measurement amounts to.

    Attributes:
        measurement: its id.
        expected_gb_s: the rate of the narrowest hop times the efficiency usual for this kind of path.
        theoretical_gb_s: the rate of the narrowest hop.
        percent_of_expected: 100 x measured / expected.
        limited_by: the narrowest hop in words, with its address.
        nccl_bound_gb_s: of a collective over NCCL, the busbw that NCCL's graph of the node allows at most.
        nccl_bound_by: the algorithm and the link that set it.
        disturbed: what disturbed it; the state is then `not_applicable`.
        text: one sentence.
    """

    measurement: str
    expected_gb_s: float | None = None
    theoretical_gb_s: float | None = None
    percent_of_expected: float | None = None
    percent_of_theoretical: float | None = None
    limited_by: str = ""
    nccl_bound_gb_s: float | None = None
    nccl_bound_by: str = ""
    disturbed: str = ""
    state: State = State.UNKNOWN
    text: str = ""


class FitSegment(msgspec.Struct, frozen=True, kw_only=True):
    """t = alpha + m / beta over one range of sizes, with the 95 % interval of a bootstrap."""

    from_bytes: int
    to_bytes: int
    alpha_us: float
    beta_gb_s: float
    alpha_low_us: float
    alpha_high_us: float
    beta_low_gb_s: float
    beta_high_gb_s: float


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """The cost model of one sweep.

    Attributes:
        subject: what was swept (`all_reduce nccl 2 ranks`).
        rate: what beta is: `bandwidth`, `busbw` or `algbw`.
        overall: one line through all sizes, with its confidence; alpha_us, beta_gb_s and half_size_bytes are of it.
        segments: one segment, or up to three where the curve bends (a change of protocol).
        half_size_bytes: alpha x beta of the two-parameter fit.
        max_residual: largest relative error of that fit.
        empirical_bytes: share of the peak in percent (`50`, `80`, `90`, `95`) -> smallest size that reaches it,
            read off the curve and interpolated in the logarithm of the size.
        not_fitted: why there is no fit; empty when there is one.
    """

    subject: str
    rate: str = "bandwidth"
    points: int = 0
    overall: FitSegment | None = None
    segments: tuple[FitSegment, ...] = ()
    alpha_us: float | None = None
    beta_gb_s: float | None = None
    half_size_bytes: float | None = None
    max_residual: float | None = None
    peak_gb_s: float | None = None
    empirical_bytes: dict[str, float] = msgspec.field(default_factory=dict)
    not_fitted: str = ""
    notes: tuple[str, ...] = ()


class DeviceState(msgspec.Struct, frozen=True, kw_only=True):
    """What NVML said of one GPU while it was measured: the extremes over the samples taken."""

    address: str
    samples: int = 0
    clock_sm_min_mhz: int | None = None
    clock_sm_max_mhz: int | None = None
    pcie_gen: int | None = None
    pcie_width: int | None = None
    event_reasons: tuple[str, ...] = ()
    temperature_max_c: int | None = None
    other_processes: tuple[int, ...] = ()
    replays: int | None = None
    nvlink_errors: int | None = None


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One live test: what it ran on, what was planned, measured and not measured.

    Attributes:
        ranks_authenticated_by: munge, or where else the secret of a launcher's job came from; `none` where nothing
            shows that its ranks belong to it; empty where no ranks of a launcher met.
    """

    taken_at: str = ""
    machine: dict[str, str] = msgspec.field(default_factory=dict)
    software: dict[str, str] = msgspec.field(default_factory=dict)
    method: str = ""
    planned: tuple[str, ...] = ()
    planned_s: float = 0.0
    wall_s: float = 0.0
    interrupted: bool = False
    ranks_authenticated_by: str = ""
    device_states: tuple[DeviceState, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    not_measured: tuple[NotMeasured, ...] = ()


class BaselineComparison(msgspec.Struct, frozen=True, kw_only=True):
    """How many rows of a run were compared with a baseline, and what came of them.

    Attributes:
        taken_at: when the baseline was.
        tolerance: the part that may be lost.
        within_tolerance: rows that lost no more than that.
        slower: rows that lost more.
        not_judged: rows that seem to have lost more, and were disturbed or too unsteady to say so.
        new: rows of the run that the baseline does not hold.
        absent: rows of the baseline that the run does not hold.
    """

    taken_at: str
    tolerance: float
    within_tolerance: int
    slower: int
    not_judged: int
    new: int
    absent: int


class BandwidthReport(msgspec.Struct, frozen=True, kw_only=True):
    """A run and what was made of it; what `topocheck bw --format json` prints under `schema_version`."""

    run: Run
    assessments: tuple[Assessment, ...] = ()
    fits: tuple[Fit, ...] = ()
    advice: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    baseline: BaselineComparison | None = None
