"""Since which CUDA toolkit there is native code for a GPU (data/cuda_architectures.tsv)."""

from typing import Annotated

import msgspec
from msgspec import Meta

from topocheck.knowledge.tables import Release, Source, Table


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """A compute capability, without its dot, and the first CUDA toolkit that compiles for it."""

    sm: Annotated[int, Meta(ge=10, le=999)]
    cuda: Release
    product: str
    source: Source


_ARCHITECTURES = Table("cuda_architectures", Architecture, key=("sm",))


def first_cuda(sm: int) -> tuple[int, int] | None:
    """Return (major, minor) of the first CUDA toolkit with native code for a compute capability, None for unknown."""
    return next((r.cuda[:2] for r in _ARCHITECTURES.rows() if r.sm == sm), None)
