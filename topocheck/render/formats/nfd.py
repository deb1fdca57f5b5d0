"""Labels for Kubernetes node-feature-discovery, in a file of its local source.

Lines `namespace/name=value` in /etc/kubernetes/node-feature-discovery/features.d/topocheck. A label's value is at
most 63 characters of [A-Za-z0-9._-] that begin and end with a letter or digit (Kubernetes, "Labels and Selectors").
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import TYPE_CHECKING

from topocheck.model.base import State, Verdict, known
from topocheck.render.quoting import kubernetes_label

if TYPE_CHECKING:
    from collections.abc import Iterable

    from topocheck.checks.result import Outcome
    from topocheck.pipeline import Report

NAMESPACE = "topocheck.io"
_HEALTH = {0: "ok", 1: "failed", 3: "unknown"}


def render(outcome: Outcome, report: Report) -> str:
    """Return the feature file."""
    lines = [f"{NAMESPACE}/{name}={value}" for name, value in labels(outcome, report).items()]
    return "\n".join(lines) + "\n"


def labels(outcome: Outcome, report: Report) -> dict[str, str]:
    """Return label -> value. `p2p` and `gdr` are full, partial, none or unknown; left out where there is no pair."""
    topology = report.topology
    out = {"health": _HEALTH.get(outcome.exit_code, "unknown"), "pcie": _area(outcome, "pcie")}
    if report.gpudirect.p2p:
        out["p2p"] = _extent(v.verdict for v in report.gpudirect.p2p)
    if report.gpudirect.rdma:
        out["gdr"] = _extent(v.verdict for v in report.gpudirect.rdma)
    models = Counter(g.name for g in topology.gpus if known(g.name))
    out["gpu.count"] = str(len(topology.gpus))
    if len(models) == 1:
        out["gpu.model"] = kubernetes_label(next(iter(models)))
    out["nic.count"] = str(len(topology.nics))
    out["fingerprint"] = fingerprint(report)
    return out


def fingerprint(report: Report) -> str:
    """Return 12 hexadecimal digits that nodes of the same wiring share.

    Made of the GPU models, NIC types and path classes by label, and of no serial number, UUID or address.
    """
    t = report.topology
    words = [f"{g.label} {g.name if known(g.name) else '?'}" for g in t.gpus]
    words += [f"{n.label} {n.rdma.hca_type if n.rdma and known(n.rdma.hca_type) else '?'}" for n in t.nics]
    words += [f"{p.from_label} {p.to_label} {p.class_ if known(p.class_) else '?'}" for p in t.paths]
    return hashlib.sha256("\n".join(sorted(words)).encode("utf-8", "replace")).hexdigest()[:12]


def _area(outcome: Outcome, area: str) -> str:
    states = {f.state for f in outcome.findings if f.area == area}
    if State.FAIL in states:
        return "failed"
    if State.UNKNOWN in states or outcome.exit_code == 3:
        return "unknown"
    return "degraded" if State.WARN in states else "ok"


def _extent(verdicts: Iterable[Verdict]) -> str:
    seen = set(verdicts)
    if Verdict.UNKNOWN in seen:
        return "unknown"
    usable = seen & {Verdict.YES, Verdict.DEGRADED}
    return "none" if not usable else "partial" if Verdict.NO in seen else "full"
