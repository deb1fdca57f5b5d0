"""RoCE ports that share a subnet, and ports from which no route leads on."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.checks.support import Row, assert_row
from tests.support.losses import Case
from tests.support.snapshots import record
from topocheck.model.base import State

F, W, N, U = State.FAIL, State.WARN, State.NOTE, State.UNKNOWN
HGX = "hgx_h100_cx7"
PAIR = """
root 0000:00 node=0
  rp 01.0 5x16
    h100_sxm
  rp 02.0 5x16
    cx7 rdma=mlx5_0 net=eth2 layer=Ethernet
  rp 03.0 5x16
    cx7 rdma=mlx5_1 net=eth3 layer=Ethernet
"""
ONE = {"eth2": ["10.1.0.5/24"], "eth3": ["10.1.0.6/24"]}
TCP = {"NCCL_IB_DISABLE": "1"}
ROUTED = {"eth2": ["10.1.0.5/31"], "eth3": ["10.1.2.6/31"]}
ONWARD = ["10.0.0.0/8 via 10.1.0.4 dev eth2", "10.0.0.0/8 via 10.1.2.7 dev eth3"]


def _pair(**more: Any) -> dict[str, Any]:
    return {"pci": {"tree": PAIR}, **more}


ROWS = [
    Row(id="rdma.same-subnet", machine="h78_one_subnet", state=W, subject="node", says=("eth1, eth2", "10.7.0.0/24")),
    Row(id="rdma.same-subnet", machine=HGX, change=_pair()),
    Row(id="rdma.same-subnet", machine=HGX),
    Row(id="rdma.same-subnet", machine=HGX, change=_pair(addresses=ONE), state=W, subject="node",
        says=("eth2, eth3", "10.1.0.0/24", "arp_ignore", "status 12", "a subnet of its own")),
    # set up for one subnet, as some providers do it
    Row(id="rdma.same-subnet", machine=HGX, change=_pair(addresses=ONE, network={"arp_ignore": 1, "arp_announce": 2})),
    Row(id="rdma.same-subnet", machine=HGX, state=W, says=("rp_filter 1",),
        change=_pair(addresses=ONE, network={"arp_ignore": 1, "arp_announce": 2, "rp_filter": 1})),
    Row(id="rdma.same-subnet", machine=HGX, state=W, says=("arp_announce 0",),
        change=_pair(addresses=ONE, network={"arp_ignore": 2})),
    # policy routing: what it does is not read
    Row(id="rdma.same-subnet", machine=HGX, change=_pair(addresses=ONE, network={"tables": [100]}), state=N),
    Row(id="rdma.same-subnet", machine=HGX, change=_pair(addresses=ONE, network={"tables": [100], "arp_filter": 1})),
    Row(id="rdma.same-subnet", machine=HGX, state=U, change=_pair(addresses=ONE,
        files={"/proc/sys/net/ipv4/conf/all/arp_ignore": {"error": "EACCES"}})),
    Row(id="rdma.same-subnet", machine=HGX, applies=False,
        change={"pci": {"tree": PAIR.replace(" layer=Ethernet", "")}, "addresses": ONE}),  # IPoIB
    # the same interfaces, used by TCP
    Row(id="nccl.sockets-share-subnet", machine=HGX, applies=False, change=_pair(addresses=ONE)),  # RDMA is used
    Row(id="nccl.sockets-share-subnet", machine=HGX, state=N, change=_pair(addresses=ONE, environment=TCP),
        says=("eth2, eth3", "10.1.0.0/24", "arp_ignore 0", "rate of one", "NCCL_SOCKET_IFNAME='=eth2'")),
    Row(id="nccl.sockets-share-subnet", machine=HGX, state=W, says=("rp_filter 1", "time out"),
        change=_pair(addresses=ONE, environment=TCP, network={"arp_ignore": 1, "arp_announce": 2, "rp_filter": 1})),
    Row(id="nccl.sockets-share-subnet", machine=HGX,
        change=_pair(addresses=ONE, environment=TCP, network={"arp_ignore": 1, "arp_announce": 2})),
    Row(id="nccl.sockets-share-subnet", machine=HGX,
        change=_pair(addresses=ONE, environment={**TCP, "NCCL_SOCKET_IFNAME": "=eth2"})),
    Row(id="nccl.sockets-share-subnet", machine=HGX,
        change=_pair(addresses={**ONE, "eth3": ["10.2.0.6/24"]}, environment=TCP)),
    # routed fabrics
    Row(id="rdma.no-route", machine=HGX, change=_pair(), applies=False),
    Row(id="rdma.no-route", machine=HGX, change=_pair(addresses=ROUTED), state=W, subject="node",
        says=("eth2 (10.1.0.5/31), eth3 (10.1.2.6/31)", "have no route", "dev eth2")),
    Row(id="rdma.no-route", machine=HGX, state=W, says=("leave by lo, the default route",),
        change=_pair(addresses=ROUTED, network={"routes": ["default via 10.9.0.1 dev lo"]})),
    Row(id="rdma.no-route", machine=HGX, change=_pair(addresses=ROUTED, network={"routes": ONWARD})),
    Row(id="rdma.no-route", machine=HGX, change=_pair(addresses=ROUTED, network={"routes": ONWARD[:1]}), state=W,
        says=("eth3 (10.1.2.6/31), whose subnet",)),
    Row(id="rdma.no-route", machine=HGX, change=_pair(addresses=ROUTED, network={"tables": [7]}), applies=False),
    Row(id="rdma.no-route", machine=HGX, state=U,
        change=_pair(addresses=ROUTED, files={"/proc/net/route": {"error": "EACCES"}})),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_rows(row: Row) -> None:
    assert_row(row)


PLUGIN = r"access:/usr/lib64/libnccl-net\.so\|r"
UP = "read:/sys/class/infiniband/[^/]+/ports/1/state"


@pytest.mark.parametrize(
    ("environment", "lost", "state"),
    [
        (TCP, PLUGIN, U),  # a plugin may be there, and NCCL takes it before TCP
        (TCP, UP, W),  # whatever the ports are, NCCL does not use them
        ({}, UP, U),
    ],
)
def test_where_it_is_not_known_whether_nccl_uses_tcp(environment: dict[str, str], lost: str, state: State) -> None:
    strict = _pair(addresses=ONE, environment=environment, network={"arp_ignore": 1, "arp_announce": 2, "rp_filter": 1})
    case = Case("two ports in one subnet", record(HGX, **strict))
    questions = [q for q in case.questions if re.match(lost, q)]
    assert questions
    found = [f for f in case.without(questions, "error").findings if f.id == "nccl.sockets-share-subnet"]
    assert [f.state for f in found] == [state]
    assert ("cannot be determined" in found[0].title) is (state is U)


def test_a_lost_answer_about_plugins_is_no_matter_where_nccl_uses_rdma() -> None:
    case = Case("two ports in one subnet", record(HGX, **_pair(addresses=ONE)))
    report = case.without([q for q in case.questions if re.match(PLUGIN, q)], "error")
    (result,) = (r for r in report.results if r.id == "nccl.sockets-share-subnet")
    assert result.state is State.NOT_APPLICABLE
