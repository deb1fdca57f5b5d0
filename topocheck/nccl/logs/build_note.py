"""The NCCL of a log beside the GPUs of the machine: code for them that its build cannot hold."""

from __future__ import annotations

import re
from collections.abc import Iterable

from topocheck.knowledge.cuda_architectures import first_cuda
from topocheck.model.base import is_digits
from topocheck.nccl.logs.types import LogFinding, NcclLog
from topocheck.nccl.predict.types import HostInput

_BUILT = re.compile(r"\+cuda([0-9]{1,3})\.([0-9]{1,3})")


def build_findings(log: NcclLog, hosts: Iterable[HostInput]) -> tuple[LogFinding, ...]:
    """Return a note for each version in a log that was built with a CUDA older than the GPUs.

    Args:
        log: as read.
        hosts: those that the log is compared with.
    """
    told = {e.get("sm") or "" for h in hosts for e in h.topology.walk() if e.name == "gpu"}
    capabilities = {int(sm) for sm in told if is_digits(sm) and len(sm) < 5}
    out = []
    for version in log.versions:
        m = _BUILT.search(version)
        for sm in sorted(capabilities) if m else ():
            needed = first_cuda(sm)
            if m is None or needed is None or (int(m[1]), int(m[2])) >= needed:
                continue
            cuda = ".".join(map(str, needed))
            out.append(
                LogFinding(
                    id="build-without-native-code",
                    state="note",
                    title=f"NCCL {version} holds no native code for the GPUs here (sm_{sm})",
                    evidence=f"version line {version}; native code for sm_{sm} came with CUDA {cuda}",
                    consequence="its kernels run from PTX that the driver compiles, or not at all",
                    fix=f"an NCCL built with CUDA {cuda} or newer",
                )
            )
    return tuple(out)
