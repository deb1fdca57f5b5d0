"""Devices and settings that need an external network plugin, against the loader's path."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.checks.software import findings, healthy, one, state, variant, with_env
from topocheck.host.base import Answer
from topocheck.host.recording import vocabulary
from topocheck.host.recording.anonymize import anonymize
from topocheck.model.base import State
from topocheck.placement.nccl_env import suggestions
from topocheck.probes.kept.table import table
from topocheck.probes.net_plugins import INSTALLED_FOLDERS, plugin_names

ID = "nccl.plugin-missing"
EFA, TCPXO, HGX = "h61_efa_no_plugin", "h62_tcpxo_profile", "hgx_h100_cx7"


def test_h61_efa_whose_plugin_the_loader_does_not_find() -> None:
    f = one(ID, healthy(EFA))
    assert (f.state, f.subject) == (State.WARN, "EFA")
    assert "2 EFA devices" in f.title
    assert "TCP sockets" in f.consequence
    assert ("LD_LIBRARY_PATH", "/usr/local/nvidia/lib:/usr/local/nvidia/lib64") in {
        (e.source, e.raw) for e in f.evidence
    }


@pytest.mark.parametrize(
    "path",
    ["/usr/local/nvidia/lib64/libnccl-net.so", "/usr/lib64/libnccl-net.so"],
)
def test_a_plugin_on_the_loaders_path(path: str) -> None:
    assert findings(ID, variant(EFA, files={path: "ELF"})) == ()


def test_a_plugin_in_a_folder_of_the_loaders_configuration() -> None:
    files = {"/etc/ld.so.conf.d/efa.conf": "# EFA\n/opt/x/lib\n", "/opt/x/lib/libnccl-net.so": "ELF"}
    assert findings(ID, variant(EFA, files=files)) == ()


def test_a_plugin_that_is_installed_off_the_path_is_named_in_the_fix() -> None:
    f = one(ID, variant(EFA, files={"/opt/amazon/ofi-nccl/lib/libnccl-net.so": "ELF"}))
    assert f.fix == "export LD_LIBRARY_PATH=/opt/amazon/ofi-nccl/lib:$LD_LIBRARY_PATH"


def test_h62_the_providers_variables_are_no_mistakes() -> None:
    c = healthy(TCPXO)
    assert findings(ID, c) == ()
    for id_ in ("nccl.unknown-setting", "nccl.value-ignored", "nccl.removed-setting"):
        assert findings(id_, c) == ()


def test_a_network_that_is_asked_for_by_name_and_not_here_ends_init() -> None:
    f = one(ID, with_env(HGX, NCCL_NET="gIB"))
    assert (f.state, f.subject) == (State.FAIL, "NCCL_NET")
    assert one(ID, with_env(HGX, NCCL_NET_PLUGIN="aws-ofi")).state is State.WARN


@pytest.mark.parametrize("value", [{"NCCL_NET": "IB"}, {"NCCL_NET": "Socket"}, {"NCCL_NET_PLUGIN": "none"}, {}])
def test_nccls_own_networks_need_no_plugin(value: dict[str, str]) -> None:
    assert state(ID, with_env(HGX, **value) if value else healthy(HGX)) is State.NOT_APPLICABLE


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ("", ("libnccl-net.so",)),
        ("none", ()),
        ("aws-ofi", ("aws-ofi", "libnccl-net-aws-ofi.so")),
        ("libnccl-net-x.so", ("libnccl-net-x.so",)),
        ("/opt/x/libnccl-net.so", ("/opt/x/libnccl-net.so",)),
        ("a,b", ("a", "libnccl-net-a.so", "b", "libnccl-net-b.so")),
    ],
)
def test_the_names_that_nccl_opens(asked: str, names: tuple[str, ...]) -> None:
    assert plugin_names(asked) == names


@given(st.text(max_size=60))
def test_any_value(asked: str) -> None:
    assert all(n for n in plugin_names(asked))


def test_nothing_is_suggested_that_the_providers_image_forbids() -> None:
    c = healthy(TCPXO)
    assert {s.value for s in suggestions(c.node, c.topology)} == {""}
    assert "NCCL_SOCKET_IFNAME" in {s.name for s in suggestions(healthy(HGX).node, healthy(HGX).topology) if s.value}


def test_a_snapshot_keeps_the_folders_of_plugins() -> None:
    assert {part for folder in INSTALLED_FOLDERS for part in folder.split("/") if part} <= vocabulary.PATHS


@pytest.mark.parametrize("asked", ["aws-ofi", "acme", "/opt/acme/x.so", "libacme.so", "/opt/acme/libnccl-net-acme.so"])
def test_a_snapshot_answers_what_is_asked_of_it_once_names_are_replaced(asked: str) -> None:
    def questions(value: str, folder: str) -> set[str]:
        return {f"access:{n if n.startswith('/') else f'{folder}/{n}'}|r" for n in plugin_names(value)}

    answers: dict[str, Answer] = {"environ:": {"NCCL_NET_PLUGIN": asked, "LD_LIBRARY_PATH": "/home/ann/lib"}}
    answers |= dict.fromkeys(questions(asked, "/home/ann/lib"), True)
    after = anonymize(answers, table())
    environ = after["environ:"]
    assert isinstance(environ, dict)
    assert "ann" not in str(after).split("/")
    assert ("acme" in str(after)) is False
    assert set(after) == {"environ:", *questions(environ["NCCL_NET_PLUGIN"], environ["LD_LIBRARY_PATH"])}
