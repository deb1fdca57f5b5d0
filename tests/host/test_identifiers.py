"""Addresses, GUIDs, UUIDs and serial numbers: what replaces them has their form and keeps their relations."""

from __future__ import annotations

import ipaddress
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.host.anonymizing import MAP, one
from topocheck.host.recording.redaction import Redaction

OCTETS = st.integers(0, 255)
V4 = st.integers(0, (1 << 32) - 1)
U64 = st.integers(0, (1 << 64) - 1)
U48 = st.integers(0, (1 << 48) - 1)


def common_bits(a: int, b: int, bits: int) -> int:
    return bits - (a ^ b).bit_length()


@given(V4, V4)
def test_ipv4_keeps_prefixes(a: int, b: int) -> None:
    whole = [ipaddress.IPv4Network(n) for n in ("0.0.0.0/8", "127.0.0.0/8", "224.0.0.0/3")]
    if not any(ipaddress.IPv4Address(x) in n for x in (a, b) for n in whole):
        assert common_bits(MAP.ipv4(a), MAP.ipv4(b), 32) == common_bits(a, b, 32)


@given(st.sampled_from("10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 169.254.0.0/16 100.64.0.0/10 0.0.0.0/0".split()), V4)
def test_ipv4_keeps_its_class(network: str, low: int) -> None:
    net = ipaddress.IPv4Network(network)
    before = ipaddress.IPv4Address(int(net.network_address) | low & int(net.hostmask))
    after = ipaddress.IPv4Address(MAP.ipv4(int(before)))
    assert after in net
    for question in ("is_private", "is_global", "is_loopback", "is_link_local", "is_multicast", "is_unspecified"):
        if before not in ipaddress.IPv4Network("192.0.0.0/24"):  # protocol assignments; no host has one
            assert getattr(after, question) == getattr(before, question) or after in ipaddress.IPv4Network(
                "192.0.0.0/24"
            )


@pytest.mark.parametrize("kept", ["127.0.0.1", "0.0.0.0", "255.255.255.0", "255.255.255.255", "224.0.0.1", "240.0.0.0"])
def test_ipv4_that_stays(kept: str) -> None:
    assert one("psutil:net_addresses", {"lo": [["inet", kept]]}) == {"lo": [["inet", kept]]}


@given(U64, U64, U64)
def test_gids_of_one_subnet_stay_together(prefix: int, a: int, b: int) -> None:
    x, y = MAP.ipv6(prefix << 64 | a), MAP.ipv6(prefix << 64 | b)
    if prefix > 0xFF << 56 or prefix == 0:
        return
    assert x >> 64 == y >> 64
    assert (x == y) == (a == b)


@given(U64)
def test_link_local_stays_and_shares_the_guid(guid: int) -> None:
    after = MAP.ipv6(0xFE80 << 112 | guid)
    assert after >> 64 == 0xFE80 << 48
    assert after & (1 << 64) - 1 == MAP.eui64(guid)


@given(V4)
def test_mapped_gid_follows_the_address(address: int) -> None:
    assert MAP.ipv6(0xFFFF << 32 | address) == 0xFFFF << 32 | MAP.ipv4(address)


@given(U48)
def test_guid_and_gid_follow_the_mac(mac: int) -> None:
    new = MAP.mac(mac)
    turned = mac ^ 1 << 41
    new_turned = new ^ 1 << 41
    assert MAP.eui64(turned >> 24 << 40 | 0xFFFE << 24 | turned & 0xFFFFFF) == (
        new_turned >> 24 << 40 | 0xFFFE << 24 | new_turned & 0xFFFFFF
    )
    if mac:
        assert MAP.eui64(mac >> 24 << 40 | 0x0300 << 24 | mac & 0xFFFFFF) == (
            new >> 24 << 40 | 0x0300 << 24 | new & 0xFFFFFF
        )


@given(U48)
def test_mac_keeps_kind_and_maker(mac: int) -> None:
    new = MAP.mac(mac)
    assert new >> 40 & 3 == mac >> 40 & 3
    if not mac >> 41 & 1:
        assert new >> 24 == mac >> 24


@given(st.text("0123456789abcdef", min_size=1, max_size=32), st.integers(0, 32))
def test_start_of_a_uuid_stays_its_start(digits: str, length: int) -> None:
    if digits[:length].strip("0"):
        assert MAP.hexadecimal(digits).startswith(MAP.hexadecimal(digits[:length]))


@given(st.text(max_size=20))
def test_serial_keeps_its_form(text: str) -> None:
    after = MAP.serial(text)
    assert re.sub(r"[0-9]", "0", re.sub(r"[a-z]", "a", re.sub("[A-Z]", "A", after))) == re.sub(
        r"[0-9]", "0", re.sub(r"[a-z]", "a", re.sub("[A-Z]", "A", text))
    )


@pytest.mark.parametrize(
    "text",
    [
        "00000000-0000-0000-0000-000000000000",
        "0000:0000:0000:0000",
        "0000:0000:0000:0000:0000:0000:0000:0000",
        "00:00:00:00:00:00",
        "::",
        "::1",
        "ff:ff:ff:ff:ff:ff",
        "01:00:5e:00:00:fb",
    ],
)
def test_zero_broadcast_and_known_groups_stay(text: str) -> None:
    assert Redaction(MAP).identifier(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "8932f937-d72c-4106-c12f-20bd9faed9f6",
        "8932F937_D72C_4106_C12F_20BD9FAED9F6",
        "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6",
        "MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6/1/0",
        "0c:42:a1:12:34:56",
        "0C-42-A1-12-34-56",
        "0c42.a112.3456",
        "0c42a1123456",
        "1b:42:a1:12:34:56",
        "0c42:a103:0012:3456",
        "0c-42-a1-03-00-12-34-56",
        "0x0c42a10300123456",
        "80:00:00:48:fe:80:00:00:00:00:00:00:0c:42:a1:03:00:12:34:56",
        "10.1.2.3",
        "10.1.0.0/16",
        "fe80::e42:a1ff:fe12:3456",
        "2001:db8:1:2:3:4:5:6/64",
        "::ffff:10.1.2.3",
        "3f" * 32,
    ],
)
def test_every_form_is_found_and_keeps_its_form(text: str) -> None:
    new = Redaction(MAP).identifier(text)
    assert new is not None
    assert new != text
    if "::" not in text and "/64" not in text:  # these are written in their shortest form
        assert re.sub("[0-9a-fA-F]", "0", re.sub(r"\d+", "0", new)) == re.sub(
            "[0-9a-fA-F]", "0", re.sub(r"\d+", "0", text)
        ) or len(new) == len(text)


@pytest.mark.parametrize("text", ["0", "12", "4096", "0000:3b:00.0", "mlx5_0", "580.65.06", "1.2.3", "word", "", "a-b"])
def test_other_texts_are_no_identifiers(text: str) -> None:
    assert Redaction(MAP).identifier(text) is None
