"""What an entry of products.toml may say; a mistyped key or value is refused by name."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

Ids = Annotated[str, Meta(pattern="^[0-9a-f]{4}:[0-9a-f]{4}$")]
Megabytes = Annotated[int, Meta(ge=1, le=2**24)]
Flag = Annotated[int, Meta(ge=0, le=1)]


class Product(msgspec.Struct, forbid_unknown_fields=True, rename={"class_": "class"}, kw_only=True):
    """One entry; which keys mean what stands in the head of the file."""

    kind: Literal[
        "port", "gpu", "nvswitch", "nic", "eth", "nvme", "accelerator", "display", "wifi", "audio", "host", "other"
    ]
    id: Ids
    class_: Annotated[str, Meta(pattern="^0x[0-9a-f]{6}$")]
    sub: Ids | None = None
    driver: str | None = None
    link: Annotated[str, Meta(pattern="^[1-7]x(1|2|4|8|12|16|32)$")] | None = None
    bars: list[Annotated[str, Meta(pattern="^(-|[0-9]+[KMG]6?p?)$")]] = []
    role: Literal["rc_endpoint"] | None = None
    idle_gen: Annotated[int, Meta(ge=1, le=7)] | None = None
    name: str | None = None
    arch: Annotated[int, Meta(ge=2, le=20)] | None = None
    cc: Annotated[str, Meta(pattern=r"^[0-9]{1,2}\.[0-9]$")] | None = None
    memory_mib: Megabytes | None = None
    bar1_mib: Megabytes | None = None
    nvlinks: Annotated[int, Meta(ge=0, le=36)] | None = None
    nvlink_version: Annotated[int, Meta(ge=1, le=9)] | None = None
    nvlink_mb_s: Annotated[int, Meta(ge=10000, le=200000)] | None = None
    ecc: Flag | None = None
    mig: Flag | None = None
    fabric: dict[str, Any] | None = None
    board_part: str | None = None
    gdr: bool | None = None
    addressing: Annotated[int, Meta(ge=0, le=2)] | None = None
    c2c: dict[Literal["links", "mb_s"], int] | None = None
    integrated: bool | None = None
    hca: Annotated[str, Meta(pattern="^MT[0-9]+$")] | None = None
    firmware: str | None = None
    board: str | None = None
    rate: Annotated[str, Meta(pattern=r"^[0-9.]+ Gb/sec \([0-9]+X [A-Z0-9]+\)$")] | None = None
    layer: Literal["InfiniBand", "Ethernet"] | None = None
    speed_mbit: Annotated[int, Meta(ge=10, le=10**7)] | None = None
    vpd: str | None = None


def parse_products(text: str) -> dict[str, dict[str, Any]]:
    """Return the entries by name, each checked.

    Raises:
        ValueError: an entry holds what no entry may hold.
    """
    table: dict[str, dict[str, Any]] = tomllib.loads(text)
    for name, entry in table.items():
        try:
            msgspec.convert(entry, Product)
        except msgspec.ValidationError as e:
            raise ValueError(f"products.toml, [{name}]: {e}") from e
    return table


def read_products() -> dict[str, dict[str, Any]]:
    """Return the entries of products.toml by name."""
    return parse_products(Path(__file__).with_name("products.toml").read_text())
