"""What a site wants judged, how strictly, and what a node must have."""

from __future__ import annotations

import msgspec

from topocheck.model.base import Finding, State


class CheckPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the policy says of one check, or of an area (`pcie.*`).

    Attributes:
        enabled: off means that the check is not run.
        severity: `note`, `warn` or `fail`: replaces the state of its findings that are one of these.
        require: the check must be able to tell: an unknown of it gives exit code 3.
        thresholds: name -> value, as the check documents them.
        preview: a check that is still in preview is run.
    """

    enabled: bool = True
    severity: str | None = None
    require: bool = False
    thresholds: dict[str, float] = msgspec.field(default_factory=dict)
    preview: bool = False


class Expect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What this node must have; a field left out is not judged.

    `nic_rate_gbit_s` is the kernel's signalling rate of each RDMA port that must be up; `gdr_pairs` is the least
    number of GPU-NIC pairs whose GPUDirect RDMA verdict is yes. `nic_rates_gbit_s` is the same rate for each kind of
    port (`model.net.port_kind`), on a node with unlike NICs.
    """

    gpu_model: str | None = None
    gpu_count: int | None = None
    nvlinks_per_gpu: int | None = None
    nic_count: int | None = None
    nic_rate_gbit_s: float | None = None
    nic_rates_gbit_s: dict[str, float] | None = None
    driver_version: str | None = None
    p2p_everywhere: bool | None = None
    gdr_pairs: int | None = None
    pcie_gen: int | None = None
    pcie_width: int | None = None
    min_h2d_gb_s: float | None = None
    min_p2p_gb_s: float | None = None
    min_busbw_gb_s: float | None = None


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The policy of a run; `source` names where it came from, `preview` runs all checks that are still in preview."""

    source: str = "built in"
    strict: bool = False
    preview: bool = False
    require_probes: tuple[str, ...] = ("pci",)
    checks: dict[str, CheckPolicy] = msgspec.field(default_factory=dict)
    expect: Expect = msgspec.field(default_factory=Expect)

    def of(self, check_id: str) -> CheckPolicy:
        """Return what is said of a check: by its id, else by its area, else the default."""
        area = check_id.split(".", 1)[0] + ".*"
        return self.checks.get(check_id) or self.checks.get(area) or CheckPolicy()

    def threshold(self, check_id: str, name: str, default: float) -> float:
        """Return a threshold of a check, or the default."""
        return self.of(check_id).thresholds.get(name, default)

    def enables(self, check_id: str, *, preview: bool = False) -> bool:
        """Return whether a check is run; one in preview only where it is asked for."""
        rule = self.of(check_id)
        return rule.enabled and (not preview or self.preview or rule.preview)

    def adjust(self, finding: Finding) -> Finding:
        """Return a finding with the severity the policy gives it; unknown and ok are never changed."""
        severity = self.of(finding.id).severity
        if severity is None or finding.state not in (State.NOTE, State.WARN, State.FAIL):
            return finding
        return msgspec.structs.replace(finding, state=State(severity))
