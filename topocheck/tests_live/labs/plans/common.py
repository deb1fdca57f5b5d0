"""What the plans of all labs share: options, ranks, places, results, the cost of one message."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from topocheck.bandwidth.cost_model import Point, fit_sweep
from topocheck.bandwidth.lab_catalogue import LINK
from topocheck.model.lab import LabLine, LabTable, TableSpec, Value
from topocheck.model.measurement import Backend, Fit, Measurement, NotMeasured
from topocheck.tests_live.launch.lab_job import Device, LabRow, Pair
from topocheck.tests_live.launch.training_job import TrainRow
from topocheck.tests_live.training.report_types import JobLayout

KIB, MIB = 1 << 10, 1 << 20
PING_SIZES: dict[Device, tuple[int, ...]] = {
    "host": (4, 256, 4 * KIB, 64 * KIB, 512 * KIB, 4 * MIB),
    "gpu": (4, 4 * KIB, 512 * KIB, 4 * MIB, 32 * MIB, 128 * MIB, 256 * MIB),
}
"""Bytes of the messages to which alpha and beta are fitted. Between two GPUs 4 MiB take barely longer than 4 bytes (43
and 44 us on two H200)."""
PAIRS = {"within": "one node", "between": "two nodes"}
OPEN = 100.0
"""Times the rate itself from which on the upper end of its interval says nothing."""
GPUS_NEEDED = "needs {0} GPUs, one for each rank; {1} are used here"


class LabOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for; an empty tuple or 0 leaves the choice to the lab.

    Attributes:
        backends: nccl, gloo, mpi.
        ranks: numbers of ranks, each of which is run.
        sizes: bytes: of buffers, messages, activations, borders.
        pieces: of a ring broadcast, or micro-batches of a pipeline.
        inside: ranks that count as one node where all are on one.
        servers: numbers of parameter servers.
        compute_ms: for which a stage or worker waits.
        epochs: over the digits.
        gradient_bytes: of the larger model.
        data: file of images to learn in place of the digits.
        samples, sample_s, limit_s: timed samples of each row, seconds of one, of one step at most.
    """

    backends: tuple[Backend, ...] = ()
    ranks: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    pieces: tuple[int, ...] = ()
    inside: int = 0
    servers: tuple[int, ...] = ()
    compute_ms: float = 0.0
    epochs: int = 8
    gradient_bytes: int = 0
    samples: int = 5
    sample_s: float = 0.2
    limit_s: float = 20.0
    data: str = ""


class Rows(msgspec.Struct, frozen=True, kw_only=True):
    """What ranks run: rows of training, then of the lab."""

    train: tuple[TrainRow, ...] = ()
    lab: tuple[LabRow, ...] = ()


class Filled(msgspec.Struct, frozen=True, kw_only=True):
    """What a lab makes of its results."""

    tables: tuple[LabTable, ...]
    notes: tuple[str, ...] = ()
    fits: tuple[Fit, ...] = ()


class Results:
    """What was measured and what not, by id."""

    def __init__(self, outcomes: Sequence[Measurement | NotMeasured]) -> None:
        self.measured = {o.id: o for o in outcomes if isinstance(o, Measurement)}
        self.missing = {o.id: o.reason for o in outcomes if isinstance(o, NotMeasured)}

    def get(self, row: LabRow | TrainRow, name: str) -> Measurement | None:
        """Return a quantity of a row; None where it was not measured."""
        return self.measured.get(f"{row.id}:{name}")

    def median(self, row: LabRow | TrainRow, name: str = "time") -> float | None:
        """Return the median of a quantity of a row."""
        m = self.get(row, name)
        return None if m is None else m.median

    def why(self, row: LabRow | TrainRow) -> str:
        """Return why a row was not measured; the empty text where it was."""
        return self.missing.get(row.id, "")


def counts(job: JobLayout, options: LabOptions, least: int = 2) -> tuple[int, ...]:
    """Return the numbers of ranks that are run, of at least `least`."""
    if options.ranks:
        return tuple(n for n in options.ranks if n >= least)
    n, out = 1, {job.ranks}
    while n < job.ranks:
        out.add(n)
        n *= 2
    return tuple(sorted(x for x in out if x >= least))


def with_serial(job: JobLayout, options: LabOptions) -> LabOptions:
    """Return the options with one rank among the numbers of ranks."""
    return msgspec.structs.replace(options, ranks=tuple(sorted({1, *counts(job, options)})))


def places(job: JobLayout, options: LabOptions, without: dict[str, str]) -> list[tuple[Backend, Device, str]]:
    """Return (backend, memory, why not) of all rows: those that cannot run have a reason, and stay in the table.

    Args:
        job: what the ranks stand on.
        options: as asked.
        without: backend -> why it is not there.
    """
    out: list[tuple[Backend, Device, str]] = []
    for backend in options.backends or ("nccl", "gloo", "mpi"):
        if backend == "nccl":
            out.append((backend, "gpu", without.get(backend, "") or ("" if job.gpus else "no GPU is used here")))
        else:
            out.append((backend, "host", without.get(backend, "")))
    return out


def lacks(job: JobLayout, device: Device, ranks: int) -> str:
    """Return why so many ranks cannot run there; the empty text where they can."""
    if ranks > job.ranks:
        return f"needs {ranks} ranks; the job has {job.ranks}"
    if device == "gpu" and not job.launcher and ranks > len(job.gpus):
        return GPUS_NEEDED.format(ranks, len(job.gpus))
    return ""


def each(
    job: JobLayout,
    options: LabOptions,
    without: dict[str, str],
    spec: TableSpec | None = None,
    out: list[LabLine] | None = None,
    least: int = 2,
) -> Iterator[tuple[Backend, Device, int]]:
    """Yield (backend, memory, ranks) of what can run; `out` gets a row with the reason for what cannot."""
    for backend, device, why in places(job, options, without):
        for n in counts(job, options, least):
            reason = why or lacks(job, device, n)
            if not reason:
                yield backend, device, n
            elif spec is not None and out is not None:
                ranks = {} if why else {"ranks": n}
                out.append(spec.row(reason, backend=backend, memory=device, **ranks))


def crowded(job: JobLayout, device: Device, ranks: int) -> bool:
    """Tell whether a node has more ranks of host memory than cores for them."""
    return device == "host" and min(ranks, job.ranks_per_node or ranks) > job.cores


def servers_of(job: JobLayout, ranks: int) -> int | None:
    """Return how many nodes the first so many ranks fill; None where no whole number."""
    if job.nodes == 1:
        return 1
    per = job.ranks_per_node
    return ranks // per if per and ranks % per == 0 else None


def crowded_note(job: JobLayout, ranks: Sequence[int]) -> tuple[str, ...]:
    """Return the note below a table with rows of more ranks than cores."""
    many = [n for n in ranks if crowded(job, "host", n)]
    if not many:
        return ()
    return (
        f"{', '.join(map(str, many))} ranks of host memory share {job.cores} cores of a node: they wait for each "
        "other's core, which the model knows nothing of",
    )


# The link between two ranks, which predictions rest on.


def link_pairs(job: JobLayout) -> dict[Pair, tuple[int, int]]:
    """Return the pairs of ranks whose messages are timed: within a node, and between two."""
    per = job.ranks_per_node
    if job.nodes == 1:
        return {"within": (0, 1)}
    out: dict[Pair, tuple[int, int]] = {"within": (0, 1)} if per > 1 else {}
    if per:
        out["between"] = (0, per)
    return out


def link_rows(job: JobLayout, options: LabOptions, spots: Sequence[tuple[Backend, Device, str]]) -> list[LabRow]:
    """Return the messages to which alpha and beta are fitted."""
    out = []
    for backend, device, why in spots:
        if why or lacks(job, device, 2):
            continue
        for pair, members in link_pairs(job).items():
            out += [
                LabRow(
                    id=f"lab:ping:{backend}:{device}:{pair}:{size}", work="ping_pong", backend=backend, device=device,
                    members=members, pair=pair, calibrates=True, size_bytes=size, samples=max(7, options.samples),
                    sample_s=options.sample_s / 2,
                )
                for size in PING_SIZES[device]
            ]  # fmt: skip
    return out


def fastest(sweep: Sequence[Measurement]) -> list[Point]:
    """Return the points of a sweep of messages by their fastest samples.

    Whatever else runs makes a message later, never earlier, and no message takes longer than a larger one: so a size
    takes at most what the sizes above it took at least.
    """
    out: list[Point] = []
    least = float("inf")
    for m in sorted(sweep, key=lambda m: -m.size_bytes):
        least = min(least, m.min / 1e6)
        out.append(Point(m.size_bytes, least))
    return out[::-1]


class Links:
    """The cost of one message by backend, memory and pair, from the rows of `link_rows`."""

    def __init__(self, rows: Sequence[LabRow], results: Results) -> None:
        points: dict[tuple[str, str, str], list[Measurement]] = {}
        for row in rows:
            if row.calibrates and (m := results.get(row, "time")):
                points.setdefault((row.backend, row.device, row.pair), []).append(m)
        self.fits = {
            key: fit_sweep(f"messages {' '.join(key)}", fastest(found), rate="algbw") for key, found in points.items()
        }

    def cost(self, backend: str, device: str, pair: str = "within") -> tuple[float, float] | None:
        """Return (alpha in seconds, beta in bytes per second); None where no fit tells."""
        fit = self.fits.get((backend, device, pair))
        if fit is None and pair == "between":
            return self.cost(backend, device)
        if fit is None or fit.not_fitted or fit.alpha_us is None or fit.beta_gb_s is None:
            return None
        return fit.alpha_us / 1e6, fit.beta_gb_s * 1e9

    def worst(self, job: JobLayout, backend: str, device: str, ranks: int) -> tuple[float, float] | None:
        """Return the cost of a message of the slowest link among the first so many ranks."""
        between = job.nodes > 1 and ranks > (job.ranks_per_node or 1)
        return self.cost(backend, device, "between" if between else "within")

    def predict(self, job: JobLayout, row: LabRow, seconds: Callable[[float, float], float]) -> float | None:
        """Return `seconds(alpha, beta)` of the slowest link in microseconds; None where the link is not known."""
        cost = self.worst(job, row.backend, row.device, row.ranks)
        return None if cost is None else seconds(*cost) * 1e6

    def table(self) -> LabTable:
        """Return the links as a table."""
        rows = [
            LINK.row(fit.not_fitted, backend=b, memory=m, pair=PAIRS[pair],
                     **fit_values(fit))
            for (b, m, pair), fit in self.fits.items()
        ]  # fmt: skip
        notes = [f"{b}, {m}, {PAIRS[pair]}: {n}" for (b, m, pair), fit in self.fits.items() for n in fit.notes]
        return LabTable(spec=LINK, rows=tuple(rows), notes=tuple(notes))


def fit_values(fit: Fit) -> dict[str, Value]:
    """Return the cells of FIT_COLUMNS."""
    o = fit.overall
    if o is None:
        return {}
    # Else an interval without an upper end: the sweep does not show that bytes cost anything.
    high = o.beta_high_gb_s if o.beta_high_gb_s < OPEN * o.beta_gb_s else None
    return {
        "alpha_us": o.alpha_us, "alpha_low_us": o.alpha_low_us, "alpha_high_us": o.alpha_high_us,
        "beta_gb_s": o.beta_gb_s, "beta_low_gb_s": o.beta_low_gb_s, "beta_high_gb_s": high,
    }  # fmt: skip


def data_text(m: Measurement | None) -> Value:
    """Return `right` or `WRONG` of data that were compared."""
    if m is None or m.verified is None:
        return None
    return "right" if m.verified else "WRONG"


def ratio(measured: float | None, predicted: float | None) -> float | None:
    """Return measured / predicted."""
    return measured / predicted if measured is not None and predicted else None


def lines(found: Sequence[LabLine]) -> tuple[LabLine, ...]:
    """Return rows without those that equal an earlier one with a reason: of what cannot run, one is enough."""
    out: list[LabLine] = []
    seen: set[tuple[Any, ...]] = set()
    for line in found:
        key = (line.reason, *line.values)
        if line.reason:
            if key in seen:
                continue
            seen.add(key)
        out.append(line)
    return tuple(out)
