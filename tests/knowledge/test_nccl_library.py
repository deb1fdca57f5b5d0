"""Names of settings in the bytes of a library."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from topocheck.knowledge.nccl_library import absent_from_library, names_in, unknown_to_table

BYTES = (
    b"\x7fELF\0NCCL_P2P_LEVEL\0NCCL_ODD_THING\0NCCL_LOG_INFO\0text NCCL_NOT_ALONE here\0NCCL version 2.28.9+cuda13.0\0"
)


def test_names_stand_between_zero_bytes():
    names, version = names_in([BYTES])
    assert names == {"NCCL_P2P_LEVEL", "NCCL_ODD_THING", "NCCL_LOG_INFO"}
    assert version == (2, 28, 9)


@given(st.integers(1, 40))
def test_pieces_of_any_size_give_the_same(size):
    pieces = [BYTES[i : i + size] for i in range(0, len(BYTES), size)]
    assert names_in(pieces) == names_in([BYTES])


def test_what_the_table_lacks_is_named_and_constants_are_not():
    assert unknown_to_table(names_in([BYTES])[0]) == ("NCCL_ODD_THING",)


def test_what_the_library_lacks_is_named():
    absent = absent_from_library({"NCCL_P2P_LEVEL"}, (2, 28, 9))
    assert "NCCL_IB_TIMEOUT" in absent
    assert "NCCL_P2P_LEVEL" not in absent
    assert "NCCL_RINGS" not in absent
