"""Types of what another process or node sent: strings and numbers within bounds, for strict decoding."""

from __future__ import annotations

from typing import Annotated

import msgspec

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=255, pattern=r"\A[ -~]+\Z")]
"""A node's or host's name: printable ASCII, since it is shown."""
Device = Annotated[str, msgspec.Meta(max_length=64, pattern=r"\A(?!-)[A-Za-z0-9_.-]*\Z")]
"""A device of InfiniBand or an interface (empty for none): no option, no path, no blank."""
Address = Annotated[str, msgspec.Meta(max_length=64, pattern=r"\A[0-9A-Fa-f:.]+(%[A-Za-z0-9_.-]{1,15})?\Z")]
"""An address in numbers."""
Port = Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)]
Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 20)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=86400)]
Positive = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
"""A measured number: neither negative nor infinite, and no NaN."""
Text = Annotated[str, msgspec.Meta(max_length=2000)]
