"""Settings of other programs: by presence or value, and only where the machine has what they move."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.checks.software import findings, healthy, one, state, with_env
from tests.checks.support import Row, assert_row
from topocheck.host.live.filters import value_allowed, variable_allowed
from topocheck.knowledge.nccl import foreign_reader
from topocheck.knowledge.other_settings import acts, means_no, other_settings
from topocheck.model.base import State

ID = "nccl.other-programs"
HGX, RTX, ADA = "hgx_h100_cx7", "rtx4090_x8", "rtx6000ada_x4"
SETTINGS = {r.name: r for r in other_settings()}
ROWS = [Row(id=ID, machine=HGX, change={"environment": {"UCX_IB_GPU_DIRECT_RDMA": "no"}}, state=State.WARN)]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_row(row: Row) -> None:
    assert_row(row)


def test_nothing_is_judged_without_such_a_setting() -> None:
    assert state(ID, healthy(HGX)) is State.NOT_APPLICABLE


@pytest.mark.parametrize("value", ["0", "off", "false", "no"])
def test_a_variable_that_counts_by_its_presence(value: str) -> None:
    # ggml-cuda.cu asks getenv(...) != nullptr.
    f = one(ID, with_env(ADA, GGML_CUDA_P2P=value))
    assert (f.state, f.subject) == (State.WARN, "GGML_CUDA_P2P")
    assert "presence" in f.title
    assert "unset GGML_CUDA_P2P" in (f.fix or "")
    assert (f.evidence[0].source, f.evidence[0].raw) == ("environment", f"GGML_CUDA_P2P={value}")


def test_p2p_that_is_switched_on_where_it_is_proven_is_fine() -> None:
    assert findings(ID, with_env(HGX, GGML_CUDA_P2P="1")) == ()
    assert one(ID, with_env(RTX, GGML_CUDA_P2P="1")).state is State.NOTE


@pytest.mark.parametrize("name", ["VLLM_SKIP_P2P_CHECK", "SGLANG_SKIP_P2P_CHECK"])
def test_a_skipped_test_of_p2p_matters_where_p2p_is_not_proven(name: str) -> None:
    assert one(ID, with_env(RTX, **{name: "1"})).state is State.WARN
    assert findings(ID, with_env(RTX, **{name: "0"})) == ()
    assert findings(ID, with_env(HGX, **{name: "1"})) == ()


@pytest.mark.parametrize(
    ("name", "acting", "quiet"),
    [
        ("NVSHMEM_DISABLE_P2P", "1", "0"),
        ("UCX_TLS", "rc,cuda_copy", "rc,cuda_copy,cuda_ipc"),
        ("UCX_TLS", "^cuda_ipc", "^tcp"),
        ("UCX_TLS", "tcp,sm", "all"),
        ("UCX_IB_GPU_DIRECT_RDMA", "no", "yes"),
        ("OMPI_MCA_pml", "ob1", "ucx"),
        ("OMPI_MCA_pml", "ob1", "^ob1"),
        ("MPICH_GPU_IPC_ENABLED", "0", "1"),
        ("FI_PROVIDER", "tcp", "efa"),
        ("GLOO_SOCKET_IFNAME", "eth77", "lo"),
        ("UCX_NET_DEVICES", "mlx5_77:1", "mlx5_0:1,mlx5_1:1"),
        ("UCX_NET_DEVICES", "mlx5_77:1", "all"),
    ],
)
def test_what_a_switch_takes_from_this_machine(name: str, acting: str, quiet: str) -> None:
    f = one(ID, with_env(HGX, **{name: acting}))
    assert (f.state, f.subject) == (State.WARN, name)
    assert f.fix
    assert findings(ID, with_env(HGX, **{name: quiet})) == ()


def test_nothing_to_lose_is_no_finding() -> None:
    # A single pair without peer access, and no RDMA NIC.
    assert findings(ID, with_env(RTX, UCX_IB_GPU_DIRECT_RDMA="no")) == ()


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_each_is_read_from_the_environment_and_is_none_of_nccls(name: str) -> None:
    assert variable_allowed(name)
    for value in ("0", "1", "eth0", "mlx5_0:1", "cuda_ipc,rc"):
        assert value_allowed(name, value) == value
    assert foreign_reader(name) is None


@given(st.sampled_from(sorted(SETTINGS)), st.text(max_size=40))
def test_any_value_is_read(name: str, value: str) -> None:
    acted = acts(SETTINGS[name], value)
    assert acted in (True, False)
    if SETTINGS[name].reads == "off":
        assert acted is means_no(value)
    if SETTINGS[name].reads == "on":
        assert not (acted and means_no(value))
