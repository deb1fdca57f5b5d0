"""Cases that people reported, and what is right to say of each (the machines tell their source in `[case]`)."""

from __future__ import annotations

import pytest

from tests.checks.support import context, findings, hardware_checks, healthy, run, states, variant
from tests.machines.builder import machine
from topocheck.checks import registry
from topocheck.checks.consistency.visible_devices import resolve
from topocheck.model.base import Finding, Missing, State, Verdict
from topocheck.pipeline import read_node

F, W, N, U = State.FAIL, State.WARN, State.NOTE, State.UNKNOWN


def _loud(c: registry.Context) -> dict[str, list[str]]:
    """Return check -> subjects of everything that is failed or warned of."""
    out: dict[str, list[str]] = {}
    for _, found in registry.run(hardware_checks(), c):
        for f in found:
            if f.state in (F, W):
                out.setdefault(f.id, []).append(f.subject)
    return out


def _all(c: registry.Context) -> list[Finding]:
    return [f for _, found in registry.run(hardware_checks(), c) for f in found]


def test_h01_a_matrix_command_that_fails_costs_nothing_but_a_warning() -> None:
    """Classes come from the PCI tree; that nvidia-smi gave no matrix is reported, where it was asked."""
    c = healthy("h01_software_rdma")
    assert _loud(c) == {}
    assert len(c.topology.nics) == 10
    assert c.topology.software_rdma == ("siw_eth0",)
    asked = context(read_node(machine("h01_software_rdma").host()))
    (f,) = findings("consistency.smi-matrix-differs", asked)
    assert f.state is W
    assert "Failed to run topology matrix" in f.title
    assert "exit status 255" in f.title


def test_h02_one_lost_gpu_is_one_failure() -> None:
    """Seven GPUs are judged as usual: 21 pairs told, 7 unknown, one failure with the advice to drain."""
    c = healthy("h02_gpu_is_lost")
    assert _loud(c) == {"pcie.device-lost": ["0000:a1:00.0 GPU5"]}
    unordered = [v for v in c.gpudirect.p2p if v.from_ < v.to]
    assert sum(v.verdict is Verdict.UNKNOWN for v in unordered) == 7
    assert sum(v.verdict is Verdict.NO for v in unordered) == 21
    (f,) = findings("pcie.device-lost", c)
    assert "Xid 79" in (f.fix or "")


def test_h03_a_crash_of_nvml_leaves_the_rest() -> None:
    """The card that reads all ones fails, with the crash as evidence; the others keep their facts."""
    c = healthy("h03_nvml_crashes")
    assert _loud(c) == {"pcie.device-lost": ["0000:c1:00.0 GPU6"]}
    (f,) = findings("pcie.device-lost", c)
    assert any("crashed (signal 11)" in e.raw for e in f.evidence)
    assert any("ff" in e.raw for e in f.evidence)


@pytest.mark.parametrize("name", ["gb10", "h04_gb10_memory_told"])
def test_h04_the_placeholder_link_of_a_superchip_is_not_judged(name: str) -> None:
    """Gen 1 x1 on a GPU that sits on the CPU's package is no finding, whatever the driver says of memory."""
    c = healthy(name)
    assert _loud(c) == {}
    gpu = c.topology.gpus[0].address
    assert gpu.startswith("000f:")
    assert not any(gpu in f.subject for f in _all(c) if f.id.startswith("pcie."))


def test_h05_a_lone_card_has_no_links_to_lose() -> None:
    """Twelve inactive links of a single card without a bridge: not applicable, with what would change that."""
    result, found = run("nvlink.links-down", healthy("h05_a100_pcie_alone"))
    assert (result.state, found) == (State.NOT_APPLICABLE, ())
    for word in ("none of them has trained", "bridge", "policy"):
        assert word in result.detail


def test_h06_two_bridged_cards_with_every_link_down() -> None:
    """A product sold with bridges, all links down on both: a warning for each, with the bridge named."""
    c = healthy("h06_h100_nvl_links_down")
    assert set(states("nvlink.links-down", c).values()) == {W}
    for f in findings("nvlink.links-down", c):
        assert "bridge" in (f.fix or "")
        assert "PCIe only" in f.consequence
        shown = {e.source: e.raw for e in f.evidence}
        assert "H100 NVL" in shown["product"]
        assert any(source.startswith("PCI tree GPU") and raw for source, raw in shown.items())


def test_h07_twelve_of_eighteen_links_by_design() -> None:
    """The product has twelve NVLinks, so the six that are down on both cards are no finding."""
    assert _loud(healthy("h07_h100_nvl_12_of_18")) == {}


def test_h07_without_knowing_the_product_it_is_unknown() -> None:
    """A name that is in no table: unknown, with the symmetry told."""
    c = variant("h07_h100_nvl_12_of_18", gpus={"name": "NVIDIA Prototype 7"})
    found = findings("nvlink.links-down", c)
    assert {f.state for f in found} == {U}
    assert all("12 of 18" in f.title and "same links are down on its siblings" in f.title for f in found)


def test_h08_completed_needs_success() -> None:
    """State Completed with the status Insufficient Resources is a failure of each GPU."""
    c = healthy("h08_fabric_insufficient")
    assert list(states("nvlink.fabric-not-ready", c).values()) == [F] * 8
    # Its fabric manager runs, so nobody is sent to install or start it.
    assert all("is running: check its log" in (f.fix or "") for f in findings("nvlink.fabric-not-ready", c))


def test_h08_a_zero_cluster_is_healthy_on_one_node() -> None:
    """Completed, Success, clique 0 and a cluster of zeros: two GPUs of a single-node fabric in a guest."""
    assert findings("nvlink.fabric-not-ready", healthy("h100_x2_vm")) == ()


def test_h09_a_fabric_is_missed_only_where_one_belongs() -> None:
    """One GPU in a guest needs none; four GPUs of a multi-node product that know none are broken."""
    assert run("nvlink.fabric-not-ready", healthy("h09a_h200_alone_vm"))[0].state is State.NOT_APPLICABLE
    assert list(states("nvlink.fabric-not-ready", healthy("h09b_gb200_no_fabric")).values()) == [F] * 4
    # The fabric manager of an NVL72 runs on its switch trays, not on this compute tray.
    _, found = run("nvlink.fabric-not-ready", healthy("h09b_gb200_no_fabric"))
    assert not any("install nvidia-fabricmanager" in (f.fix or "") for f in found)


def test_h10_a_fabric_that_never_finished() -> None:
    """Every GPU in progress, the service failed and of another version than the driver: told with all of it."""
    c = healthy("h10_fabric_in_progress")
    loud = _loud(c)
    assert len(loud["nvlink.fabric-not-ready"]) == 8
    (f,) = findings("nvlink.fabric-manager", c)
    assert f.state is F
    assert "570.86.15" in f.title
    assert "570.124.06" in f.title
    assert {e.raw for e in f.evidence} >= {"570.86.15", "570.124.06"}


def test_h10_some_gpus_with_an_error() -> None:
    """Only the GPUs whose registration ended with an error are named."""
    assert _loud(healthy("h10b_fabric_mixed")) == {
        "nvlink.fabric-not-ready": ["0000:4b:00.0 GPU2", "0000:bc:00.0 GPU6"]
    }


def test_h11_no_switch_no_fabric_manager() -> None:
    """A fabric manager that fails on bridged cards is a note: not needed, of another version, and can be removed."""
    c = healthy("h11_a40_needless_fabric_manager")
    assert _loud(c) == {}
    (f,) = findings("nvlink.fabric-manager", c)
    assert f.state is N
    for word in ("not needed", "no NVSwitch", "520.61.05", "515.105.01"):
        assert word in f.title
    assert "remove" in (f.fix or "")
    assert run("nvlink.fabric-manager", healthy("h14_bridge_pairs"))[0].state is State.NOT_APPLICABLE


def test_h12_acs_on_the_way_of_a_pair() -> None:
    """Both ports are named with their word in bits, and the advice is one that the kernel knows."""
    c = healthy("h12_acs_redirect")
    (f,) = findings("p2p.acs-redirect", c)
    assert f.state is F
    assert [(e.source, e.raw) for e in f.evidence] == [
        (f"{port} ACSCtl", "0x001d (SrcValid ReqRedir CmpltRedir UpstreamFwd)")
        for port in ("0000:40:01.1", "0000:40:03.1")
    ]
    assert "setpci" in (f.fix or "")
    assert "disable_acs_redir" in (f.fix or "")


def test_h12_look_alikes() -> None:
    """Without root it is unknown, and source validation alone redirects nothing."""
    assert list(states("p2p.acs-redirect", variant("h12_acs_redirect", system={"root": False})).values()) == [U]
    assert findings("p2p.acs-redirect", healthy("h12b_acs_source_validation")) == ()


def test_h13_peer_access_under_translation_is_unproven() -> None:
    """Every status says yes, so the report warns and sends to the test that compares bytes."""
    c = healthy("h13_iommu_translates")
    assert list(_loud(c)) == ["p2p.unverified-across-host-bridges"]
    (f,) = findings("p2p.unverified-across-host-bridges", c)
    assert "iommu=pt" in (f.fix or "")
    assert "NCCL_P2P_DISABLE=1" in (f.fix or "")


def test_h14_two_islands_are_not_a_mesh() -> None:
    """Four active links on each GPU, and two pairs: a note that names the islands."""
    c = healthy("h14_bridge_pairs")
    assert _loud(c) == {}
    (f,) = findings("nvlink.partial-islands", c)
    assert (f.state, "{GPU0, GPU1}; {GPU2, GPU3}" in f.title) == (N, True)


def test_h20_odd_values_are_missing_not_invented() -> None:
    """An unknown speed and a NUMA node of -1 give no failure, and what could not be read is called unknown."""
    c = healthy("h20_odd_pci_values")
    assert _loud(c) == {}
    assert all(f.state in (N, U) for f in _all(c))


def test_h22_one_number_two_gpus() -> None:
    """Index 3 is c2 for CUDA, which counts the fastest first, and c1 for nvidia-smi."""
    (f,) = findings("consistency.device-order", healthy("h22_mixed_gpus"))
    assert f.state is W
    assert "3 is 0000:c2:00.0 for CUDA and 0000:c1:00.0 for nvidia-smi" in f.title
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in (f.fix or "")
    assert any(e.source == "NVML index 3" and e.raw.startswith("0000:c1:00.0 GPU-") for e in f.evidence)


@pytest.mark.parametrize(
    ("value", "addresses", "slice_name", "state"),
    [
        ("MIG-377e0049-554c-540b-93c6-d0976f8426cb", ["0000:00:06.0"], "2g.20gb", None),
        ("GPU-8c7c", ["0000:00:07.0"], "", None),
        ("0,7,1", ["0000:00:06.0"], "", W),
        ("", [], "", N),
        ("0,0", ["0000:00:06.0", "0000:00:06.0"], "", F),
    ],
)
def test_h23_visible_devices(value: str, addresses: list[str], slice_name: str, state: State | None) -> None:
    """Each form resolves to the parent's address and slice, or says what it hides."""
    c = variant("h23_mig_visible", environment={"CUDA_VISIBLE_DEVICES": value})
    gpus = c.node.nvml.gpus
    assert not isinstance(gpus, Missing)
    entries = [e for e in resolve(value, gpus) if not e.problem]
    assert [e.address for e in entries] == addresses
    assert all(slice_name in e.slice_name for e in entries)
    assert [f.state for f in findings("consistency.visible-devices", c)] == ([] if state is None else [state])


def test_h24_memory_nodes_of_gpus_are_no_fault() -> None:
    """GPU memory on nodes without CPUs is the build of the machine."""
    assert _loud(healthy("h24_gpu_memory_nodes")) == {}


def test_h25_wide_domains() -> None:
    """A domain of five digits below a VMD gives no finding but what its links deserve."""
    c = healthy("h25_vmd_domains")
    assert _loud(c) == {}
    assert not any(f.state is U for f in _all(c) if f.id.startswith("pcie."))


def test_h26_a_flat_guest_is_unknown_not_bad() -> None:
    """Closeness is unknown, NVLink stays valid, and nobody is sent to look at cables or slots."""
    c = healthy("h26_vm_flat_a800")
    assert _loud(c) == {}
    (f,) = findings("p2p.flat-vm-tree", c)
    assert f.state is U
    assert "NCCL_TOPO_FILE" in (f.fix or "")
    assert "ACS and ATS" in (f.fix or "")
    assert {p.class_ for p in c.topology.paths if p.to_label.startswith("GPU")} == {"NV8"}
    advice = " ".join(f.fix or "" for f in _all(c))
    assert not any(word in advice for word in ("slot", "cable", "reseat", "setpci"))
