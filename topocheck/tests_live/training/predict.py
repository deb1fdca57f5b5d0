"""What the cost model foretells of a scaling run, and where its fit is too unsure for that. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from topocheck.bandwidth.cost_model import fit_sweep, point_of
from topocheck.bandwidth.fusion import by_size
from topocheck.model.measurement import Fit, Measurement
from topocheck.model.units import size_text
from topocheck.tests_live.launch.training_job import MIB, TrainRow, layers_of
from topocheck.tests_live.training.bucket_model import step_seconds
from topocheck.tests_live.training.patterns import predicted_seconds

WIDE = 1.6
"""How many times its lower end the upper end of an exchange's 95 % interval may be for a prediction to be made: about a
quarter to either side. The ends take alpha and beta as independent, so they are wider than the interval itself."""
Fits = dict[tuple[str, int], Fit]


def all_reduce_fits(measured: Sequence[Measurement]) -> Fits:
    """Return (backend, ranks) -> the fit of the sweep of all_reduce there, in algbw; it may be a refusal."""
    sweeps: dict[tuple[str, int], dict[int, Measurement]] = {}
    for m in measured:
        if m.kind == "collective" and m.collective == "all_reduce" and m.time_us and m.backend and m.ranks:
            sweeps.setdefault((m.backend, m.ranks), {})[m.size_bytes] = m
    return {
        (backend, ranks): fit_sweep(
            f"all_reduce {backend} {ranks} ranks", [point_of(m) for m in by_size.values()], rate="algbw"
        )
        for (backend, ranks), by_size in sweeps.items()
        if len(by_size) > 1
    }


def fit_of(fits: Fits, backend: str, device: str, ranks: int) -> tuple[Fit | None, str]:
    """Return the fit that a prediction needs, or None and why there is none."""
    if (backend, device) == ("gloo", "gpu"):
        return None, "all_reduce over Gloo was swept in host memory only"
    fit = fits.get((backend, ranks))
    if fit is None:
        return None, f"no sweep of all_reduce over {backend} with {ranks} ranks"
    if fit.not_fitted:
        return None, f"the sweep of all_reduce gives no fit: {fit.not_fitted}"
    return fit, ""


def unsure(fit: Fit, sizes: Sequence[float]) -> str:
    """Return why a fit says too little about exchanges of these sizes in bytes; the empty text where it says enough."""
    overall = fit.overall
    if overall is None:
        return "no line was fitted"
    if max(sizes) > overall.to_bytes:
        return (
            f"the sweep of all_reduce ends at {size_text(overall.to_bytes)}, "
            f"below an exchange of {size_text(max(sizes))}"
        )
    # Between the smallest and the largest size the ratio of the ends only grows or only falls.
    for size in (min(sizes), max(sizes)):
        low = overall.alpha_low_us + size / overall.beta_high_gb_s / 1e3
        high = overall.alpha_high_us + size / overall.beta_low_gb_s / 1e3
        if high > WIDE * low:
            return (
                f"the fit is uncertain: an all_reduce of {size_text(size)} takes {low / 1e3:.3g} to "
                f"{high / 1e3:.3g} ms "
                "by its 95 % interval"
            )
    return ""


def bucket_steps(
    rows: Sequence[TrainRow], fits: Fits, serial: Measurement | None, backward: Measurement | None
) -> tuple[dict[float, float], str]:
    """Return bucket_mib -> predicted microseconds of a step, or nothing and why.

    Args:
        rows: the sweep of bucket sizes of one backend, device and number of ranks.
        fits: of all_reduce.
        serial: a step of one rank.
        backward: the backward pass of it.
    """
    first = rows[0]
    fit, why = fit_of(fits, first.backend, first.device, first.ranks)
    if fit is None:
        return {}, why
    if serial is None or backward is None:
        return {}, "the step of one rank was not measured"
    width, count = layers_of(first.gradient_bytes)
    layers = [4 * width * width] * count
    if why := unsure(fit, [size for r in rows for size in by_size(layers, r.bucket_mib * MIB)]):
        return {}, why
    alpha, beta = _line(fit)
    return {
        r.bucket_mib: 1e6
        * step_seconds(
            layers,
            r.bucket_mib * MIB,
            serial_s=serial.median / 1e6,
            backward_s=backward.median / 1e6,
            alpha_s=alpha,
            rate=beta,
        )
        for r in rows
    }, ""


def pattern_us(m: Measurement, fits: Fits) -> tuple[float | None, str]:
    """Return the predicted microseconds of a ring or a parameter server, or None and why."""
    n = m.ranks or 0
    fit, why = fit_of(fits, m.backend or "", m.placement, n)
    if fit is None:
        return None, why
    if why := unsure(fit, [m.size_bytes]):
        return None, why
    alpha, beta = _line(fit)
    # One all_reduce's alpha and algbw hold 2(n-1) hops and 2(n-1)/n of the bytes on a link (ring).
    return 1e6 * predicted_seconds(str(m.mode), n, m.size_bytes, alpha / (2 * (n - 1)), beta * 2 * (n - 1) / n), ""


def _line(fit: Fit) -> tuple[float, float]:
    """Return alpha in seconds and beta in bytes per second of a fit, where there is one."""
    assert fit.alpha_us is not None
    assert fit.beta_gb_s is not None
    return fit.alpha_us / 1e6, fit.beta_gb_s * 1e9
