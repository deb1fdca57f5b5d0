"""Which rows a scaling run has. Pure."""

from __future__ import annotations

from topocheck.bandwidth.cases import CollectiveRow
from topocheck.model.measurement import Backend
from topocheck.tests_live.launch.training_job import MIB, PATTERNS, Device, TrainRow
from topocheck.tests_live.training.models import gradient_bytes as gradients_of
from topocheck.tests_live.training.report_types import DEFAULT_GPU_BYTES, DEFAULT_HOST_BYTES, JobLayout, ScaleOptions

BUCKETS_MIB = (1, 2, 5, 10, 25, 50, 100, 200)
MOST_BUCKETS = 512
FIT_SIZES = (1 << 16, 1 << 18, 1 << 20, 4 << 20, 16 << 20)
HOST_BATCH, GPU_BATCH = 32, 512
CPU_BACKENDS = ("gloo", "mpi")


def counts(ranks: int, ranks_per_node: int = 0) -> tuple[int, ...]:
    """Return 1, 2, 4 ... all ranks, and those that fill 1, 2, 4 ... all nodes, ascending."""
    out = {ranks}
    n = 1
    while n < ranks:
        out.add(n)
        n *= 2
    if ranks_per_node:
        filled = ranks_per_node
        while filled < ranks:
            out.add(filled)
            filled *= 2
    return tuple(sorted(out))


def places(job: JobLayout, options: ScaleOptions) -> tuple[list[tuple[Backend, Device]], list[str]]:
    """Return (backend, device) of all curves, and what is not applicable, with the reason."""
    out: list[tuple[Backend, Device]] = []
    why: list[str] = []
    for backend in options.backends or (("nccl", "gloo") if job.gpus else ("gloo",)):
        if backend == "nccl":
            if job.gpus:
                out.append(("nccl", "gpu"))
            else:
                why.append("nccl: needs a GPU per rank, and none is used here")
            continue
        out.append((backend, "host"))
        if backend == "gloo" and job.gpus:
            out.append(("gloo", "gpu"))
            if options.quick:
                why.append("gloo, GPU tensors: --quick leaves out the sweep of bucket sizes")
            why.append(
                "gloo, GPU tensors: torch's Gloo has no send and receive of GPU memory, so no ring and no server"
            )
        if backend == "mpi":
            why.append(
                "mpi, GPU tensors: torch's wheels have no MPI backend, and mpi4py is given host memory only, since an "
                "MPI that is not CUDA-aware crashes on a GPU's address"
            )
    return out, why


def most_ranks(job: JobLayout, device: str) -> int:
    """Return how many ranks a curve may have."""
    if device == "gpu" and not job.launcher:
        return min(job.ranks, len(job.gpus))
    return job.ranks


def gradient_bytes(options: ScaleOptions, device: str) -> int:
    """Return the gradient size, as the model of whole layers has it."""
    wanted = options.gradient_bytes or (DEFAULT_GPU_BYTES if device == "gpu" else DEFAULT_HOST_BYTES)
    return gradients_of("mlp", wanted)


def collective_rows(job: JobLayout, options: ScaleOptions) -> tuple[CollectiveRow, ...]:
    """Return sweeps of the collective: one size at each number of ranks, several at all of them for the cost model."""
    out = []
    for backend, device in places(job, options)[0]:
        if (backend, device) == ("gloo", "gpu"):
            continue
        # As large as the gradients, so that the cost model fitted to it reaches every bucket.
        size = (
            options.collective_bytes
            or options.gradient_bytes
            or (DEFAULT_GPU_BYTES if device == "gpu" else DEFAULT_HOST_BYTES)
        )
        most = most_ranks(job, device)
        for n in counts(most, job.ranks_per_node):
            if n == 1:
                continue
            sizes = tuple(sorted({*(s for s in FIT_SIZES if s < size), size})) if n == most else (size,)
            out.append(
                CollectiveRow(
                    id=f"scale:{options.collective}:{backend}:{n}",
                    collective=options.collective,
                    backend=backend,
                    ranks=n,
                    sizes_bytes=sizes,
                    samples_max=5,
                    budget_s=1.0,
                )
            )
    return tuple(out)


def train_rows(job: JobLayout, options: ScaleOptions) -> tuple[TrainRow, ...]:
    """Return the training rows: scaling, then at all ranks compression, patterns, buckets, digits."""
    out: list[TrainRow] = []
    for backend, device in places(job, options)[0]:
        most = most_ranks(job, device)
        size = gradient_bytes(options, device)
        batch = options.batch or (GPU_BATCH if device == "gpu" else HOST_BATCH)

        def row(
            name: str,
            ranks: int,
            backend: Backend = backend,
            device: Device = device,
            size: int = size,
            batch: int = batch,
            **rest: object,
        ) -> TrainRow:
            return TrainRow(
                id=f"scale:train:{backend}:{device}:{ranks}:{name}",
                backend=backend,
                device=device,
                ranks=ranks,
                gradient_bytes=size,
                batch=batch,
                samples=options.samples,
                sample_s=options.sample_s,
                limit_s=options.limit_s,
                **rest,  # type: ignore[arg-type]
            )

        out += [row("step", n) for n in counts(most, job.ranks_per_node)]
        if options.digits:
            out += [row("digits", n, kind="digits") for n in sorted({1, most})]
        if most == 1:
            continue
        for hook in options.hooks:
            if hook != "none":
                out.append(row(f"hook {hook}", most, hook=hook, exact=True))
                if options.digits:
                    out.append(row(f"digits {hook}", most, kind="digits", hook=hook))
        if backend == "mpi":  # no DDP, whose buckets are swept, and no patterns by torch's calls
            continue
        if options.patterns:
            # Gloo sends and receives host memory only (torch.distributed's table of backends), and does not check.
            able = PATTERNS[:1] if (backend, device) == ("gloo", "gpu") else PATTERNS
            out += [row(f"pattern {p}", most, kind="pattern", pattern=p) for p in able]
        if not (options.quick and (backend, device) == ("gloo", "gpu")):
            out += [row(f"bucket {b:g}", most, bucket_mib=b) for b in bucket_sizes(options, size)]
    return tuple(out)


def bucket_sizes(options: ScaleOptions, size: int) -> tuple[float, ...]:
    """Return the bucket sizes to sweep: up to one that takes all gradients, and not so small that hundreds come."""
    if options.buckets_mib is not None:
        return options.buckets_mib
    mib = size / MIB
    fitting = [float(b) for b in BUCKETS_MIB if mib / MOST_BUCKETS <= b < mib]
    return (*(fitting[::2] if options.quick else fitting), mib)


def split_mpi(rows: tuple[TrainRow, ...]) -> tuple[tuple[TrainRow, ...], tuple[TrainRow, ...]]:
    """Return rows of torch's backends, and those of MPI."""
    return tuple(r for r in rows if r.backend != "mpi"), tuple(r for r in rows if r.backend == "mpi")
