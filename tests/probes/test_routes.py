"""Routes, routing tables, and the kernel's settings of interfaces that share a subnet."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.machines.builder import machine
from topocheck.host.recording.anonymize import anonymize
from topocheck.model.base import Missing, Reason, known
from topocheck.model.net import NetFacts, Route, ipv4_networks
from topocheck.probes import net, routes
from topocheck.probes.kept.table import table

# As `cat /proc/net/route` printed it on a machine with a default route and one network (little-endian hex).
MAIN = """\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t010011AC\t0003\t0\t0\t100\t00000000\t0\t0\t0
eth0\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
"""


def test_the_main_table() -> None:
    """Hex AC110001 is 172.17.0.1, mask FFFF0000 is /16 (addresses stand lowest byte first)."""
    assert routes.parse_routes(MAIN) == (
        Route(interface="eth0", destination="0.0.0.0/0", gateway="172.17.0.1", metric=100),
        Route(interface="eth0", destination="172.17.0.0/16"),
    )


@pytest.mark.parametrize(
    "line",
    [
        "eth0\t000011AC\t00000000\t0000\t0\t0\t0\t0000FFFF\t0\t0\t0",  # not up
        "eth0\t000011AC\t00000000\t0001\t0\t0\t0\t00FF00FF\t0\t0\t0",  # no netmask
        "eth0\t000011\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0",
        "eth0 000011AC",
        "",
    ],
)
def test_lines_of_another_form_are_left_out(line: str) -> None:
    assert routes.parse_routes(f"{MAIN.splitlines()[0]}\n{line}\n") == ()


@given(st.text(max_size=400))
def test_any_text_is_read(text: str) -> None:
    routes.parse_routes(text)


@given(st.integers(0, 32))
def test_prefix_lengths(length: int) -> None:
    assert routes.prefix_length(str(ipaddress.ip_network(f"0.0.0.0/{length}").netmask)) == length


def _facts(**overrides: object) -> NetFacts:
    return net.read(machine("hgx_h100_cx7", nics={"layer": "Ethernet"}, **overrides).host())


def test_settings_are_asked_only_of_interfaces_that_share_a_subnet() -> None:
    apart = _facts()
    assert apart.filters == ()
    assert apart.other_tables is False
    shared = _facts(
        addresses={"eth1": ["10.9.0.1/24"], "eth2": ["10.9.0.2/24"]},
        network={"tables": [100], "all": {"rp_filter": 1}, "eth1": {"rp_filter": 2}},
    )
    assert {f.name: f.rp_filter for f in shared.filters} == {"eth1": 2, "eth2": 1}  # the larger of all and its own
    assert shared.other_tables is True
    assert known(shared.routes)
    assert Route(interface="eth1", destination="10.9.0.0/24") in shared.routes


def test_what_cannot_be_read_says_why() -> None:
    denied = _facts(files={"/proc/net/route": {"error": "EACCES"}, "/proc/net/fib_trie": {"error": "EACCES"}})
    assert isinstance(denied.routes, Missing)
    assert (denied.routes.reason, denied.other_tables.reason) == (Reason.DENIED, Reason.DENIED)  # type: ignore[union-attr]


def test_an_older_recording_has_no_netmasks_and_is_asked_for_no_routes() -> None:
    from topocheck.host.base import Host, RecordedBackend

    old = {"list:/sys/class/net": ["eth0"], "psutil:net_addresses": {"eth0": [["inet", "10.0.0.1"]]}}
    facts = net.read(Host(RecordedBackend(old)))
    assert known(facts.interfaces)
    assert facts.interfaces[0].ip_addresses == ("10.0.0.1",)
    assert isinstance(facts.interfaces[0].ip_netmasks, Missing)
    assert isinstance(facts.routes, Missing)


def test_replaced_routes_stay_those_of_their_interfaces() -> None:
    """The network of an interface's address goes on being the destination of its route, with other numbers."""
    after = anonymize(
        {
            "list:/sys/class/net": ["eth0"],
            "psutil:net_netmasks": {
                "eth0": [["inet", "172.17.3.4", "255.255.0.0"], ["inet6", "fe80::1", "ffff:ffff:ffff:ffff::"]]
            },
            f"read:{routes.FILE}|{routes.LIMIT}": MAIN.encode(),
            f"lines:{routes.TABLES}|Id ": ["Id 200:", "Id somebody"],
        },
        table(),
        secret=b"k" * 16,
    )
    (address, mask), (_, mask6) = ((a, m) for _, a, m in after["psutil:net_netmasks"]["eth0"])
    assert (mask, mask6) == ("255.255.0.0", "ffff:ffff:ffff:ffff::")
    default, own = routes.parse_routes(after[f"read:{routes.FILE}|{routes.LIMIT}"].decode())
    assert own.destination == str(ipaddress.ip_interface(f"{address}/16").network)
    assert "172.17." not in own.destination
    assert ipaddress.ip_address(default.gateway) in ipaddress.ip_network(own.destination)
    assert after[f"lines:{routes.TABLES}|Id "] == ["Id 200:"]


def test_networks_of_an_interface() -> None:
    (eth1,) = (i for i in _facts(addresses={"eth1": ["10.9.0.1/31", "fe80::1/64"]}).interfaces if i.name == "eth1")  # type: ignore[union-attr]
    assert [str(n) for n in ipv4_networks(eth1)] == ["10.9.0.1/31"]
