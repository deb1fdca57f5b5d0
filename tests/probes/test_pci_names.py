"""Names from pci.ids."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topocheck.host.base import Host, HostError
from topocheck.host.live.backend import LiveBackend
from topocheck.host.live.pci_ids import PATHS, find_names, lookup
from topocheck.model.base import Reason

LIST = b"""\
#
# A list in the form of the pciids project
0000  Placeholder

1000  Broadcom / LSI
\tc030  PEX890xx PCIe Gen 5 Switch
\t\t1000 a044  A subsystem
# a remark amid the devices
\tc034  Another
10de  NVIDIA Corporation
\t2330  GH100 [H100 SXM5 80GB]
\t2331  GH100 [H100 PCIe]
10df  Emulex Corporation
\t2330  Not the device of 10de
C 03  Display controller
\t00  VGA compatible controller
"""


def test_names() -> None:
    assert find_names(LIST, ["10de:2330", "1000:c034", "10DE:2331"]) == {
        "10de:2330": ["NVIDIA Corporation", "GH100 [H100 SXM5 80GB]"],
        "1000:c034": ["Broadcom / LSI", "Another"],
        "10DE:2331": ["NVIDIA Corporation", "GH100 [H100 PCIe]"],
    }


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ("10de:c030", ["NVIDIA Corporation", None]),  # another vendor's device
        ("1000:a044", ["Broadcom / LSI", None]),  # a subsystem is no device
        ("abcd:0001", [None, None]),
        ("0000:0001", ["Placeholder", None]),
        ("", [None, None]),
        ("C 03:00", [None, None]),
    ],
)
def test_names_that_are_not_there(key: str, names: list[str | None]) -> None:
    assert find_names(LIST, [key]) == {key: names}


def test_a_list_that_is_not_sorted() -> None:
    unsorted = b"\n10de  NVIDIA Corporation\n\t2330  H100\n1000  Broadcom\n\tc030  Switch\n"
    assert find_names(unsorted, ["1000:c030", "10de:2330"]) == {
        "1000:c030": ["Broadcom", "Switch"],
        "10de:2330": ["NVIDIA Corporation", "H100"],
    }


@given(data=st.binary(max_size=400), ids=st.lists(st.text(max_size=12), max_size=5))
def test_never_raises(data: bytes, ids: list[str]) -> None:
    assert set(find_names(data, ids)) == set(ids)


def test_the_first_list_that_is_there(tmp_path: Path) -> None:
    where = tmp_path / PATHS[1].lstrip("/")
    where.parent.mkdir(parents=True)
    where.write_bytes(LIST)
    host = Host(LiveBackend(str(tmp_path)))
    assert host.pci_names(["10de:2331"]) == {"10de:2331": ["NVIDIA Corporation", "GH100 [H100 PCIe]"]}


def test_no_list() -> None:
    def nothing(path: str) -> bytes:
        raise FileNotFoundError(path)

    with pytest.raises(HostError) as e:
        lookup(nothing, ["10de:2330"])
    assert e.value.reason is Reason.ABSENT
