"""Prometheus metrics: described once, filled, and written by prometheus-client.

Labels of a GPU are those of NVIDIA's DCGM-Exporter (pkg/dcgmexporter, `gpu` and `UUID`), so that its series join:
`topocheck_nvlink_links_up * on (UUID) group_left () DCGM_FI_DEV_GPU_UTIL`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from topocheck.model.base import Missing
from topocheck.render.quoting import prometheus_label

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

PREFIX = "topocheck_"
GPU = ("bdf", "gpu", "UUID")
"""PCI address, NVML's index (DCGM's too), UUID."""


class Metric(msgspec.Struct, frozen=True):
    """One metric. `name` is without prefix and, of a counter, without `_total`; `text` is its HELP line.

    `alike` names what other exporters call the same or nearly so, with their unit where it is another one: fields of
    DCGM-Exporter's etc/default-counters.csv, metrics of node_exporter's collectors.
    """

    name: str
    text: str
    labels: tuple[str, ...] = ()
    counter: bool = False
    alike: str = ""

    @property
    def full_name(self) -> str:
        """The name as Prometheus has it."""
        return f"{PREFIX}{self.name}{'_total' if self.counter else ''}"


def gpu_labels(address: str, index: int | Missing, uuid: str | Missing) -> tuple[str, str, str]:
    """Return the values of GPU; one that is not known is empty, which to Prometheus is no label."""
    return (
        address,
        "" if isinstance(index, Missing) else str(index),
        "" if isinstance(uuid, Missing) else uuid,
    )


class Families:
    """The metrics of a table, with the values that were added."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        self._seen: set[tuple[str, ...]] = set()
        self._made: dict[str, Any] = {
            m.name: (CounterMetricFamily if m.counter else GaugeMetricFamily)(PREFIX + m.name, m.text, labels=m.labels)
            for m in metrics
        }

    def add(self, name: str, value: float, *labels: str) -> None:
        """Add a value under its labels, which may hold any text; of equal ones, which Prometheus refuses, the first."""
        key = (name, *map(prometheus_label, labels))
        if key not in self._seen:
            self._seen.add(key)
            self._made[name].add_metric(key[1:], float(value))

    def collect(self) -> Iterator[Family]:
        """Return the families, as prometheus-client asks for them."""
        yield from self._made.values()

    def text(self) -> str:
        """Return the classic text format."""
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry).decode("utf-8")
