"""What a line of an NCCL log points to (data/nccl_causes.tsv)."""

from typing import Annotated, Literal

import msgspec

from topocheck.knowledge.tables import BY_COMMAS, Pattern, Source, Table

ResultCode = Literal[
    "unhandled cuda error",
    "unhandled system error",
    "internal error",
    "invalid argument",
    "invalid usage",
    "remote error",
    "timeout",
]
"""NCCL's result codes as ncclGetErrorString words them; `timeout` is ncclTimeout."""
FailureCode = (
    ResultCode
    | Literal[
        "init not finished",
        "collective timeout",
        "wrong data",
        "test failed",
        "library not loaded",
        "process group not formed",
        "program ended",
    ]
)
"""NCCL's codes, and the failures of other programs in its log, which have none."""

RESULTS: dict[int, ResultCode] = {
    1: "unhandled cuda error",
    2: "unhandled system error",
    3: "internal error",
    4: "invalid argument",
    5: "invalid usage",
    6: "remote error",
    8: "timeout",
}
"""ncclResult_t (src/nccl.h.in). 7, ncclInProgress, is no failure; RCCL has the same numbers."""


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """What a sign in a log means, and what to do next.

    Attributes:
        pattern: regular expression that the line fits; None: for any failure of that code without a better sign.
        kind: what the sign says of the job; None where there is no pattern.
        reads: whether only lines that name NCCL or CUDA count, or any line of the log.
        explains: ids of signs of which this one is the cause.
        instead_of: ids of signs that are wrong where this one is found.
    """

    id: str
    code: FailureCode
    pattern: Pattern | None = None
    reads: Literal["nccl", "program"] | None = None
    kind: Literal["failure", "general", "hint", "consequence"] | None = None
    explains: Annotated[tuple[str, ...], BY_COMMAS] = ()
    instead_of: Annotated[tuple[str, ...], BY_COMMAS] = ()
    cause: str
    next: str
    source: Source

    def __post_init__(self) -> None:
        if len({self.pattern is None, self.kind is None, self.reads is None}) > 1:
            raise ValueError("kind and reads: one of the words where there is a pattern, and empty where there is none")


_CAUSES = Table("nccl_causes", Cause, key=("id",))


def causes() -> tuple[Cause, ...]:
    """Return all rows, in the order of the file."""
    return _CAUSES.rows()
