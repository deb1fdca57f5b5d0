"""Command lines over a recording."""

from __future__ import annotations

from random import Random

from topocheck.render.formats import NAMES as FORMATS

KINDS = (
    "gres-conf",
    "topology-conf",
    "topology-block",
    "topology-yaml",
    "nccl-env",
    "rankfile",
    "numactl",
    "nccl-topo",
    "hwloc-xml",
)
SECTIONS = (
    "summary",
    "system-summary",
    "tree",
    "matrix",
    "pcie",
    "nvlink",
    "numa",
    "nics",
    "nccl",
    "p2p",
    "rdma",
    "limits",
    "software",
    "probes",
)


def of_recording(rng: Random, file: str, other: str = "") -> list[str]:
    """Return a command line that reads a recording; `other` names a second one, where there is one."""
    made = rng.choice(
        (
            report,
            report,
            check,
            check,
            check,
            emit,
            nccl,
            placement,
            snapshot,
            fleet if other else report,
            diff if other else check,
        )
    )
    return made(rng, file, other)


def report(rng: Random, file: str, other: str = "") -> list[str]:
    format_ = rng.choice(("text", "text", "json", "json", "markdown", "html", "svg"))
    argv = ["report", "--from", file, "--format", format_]
    if format_ not in ("html", "svg") and rng.random() < 0.2:
        argv += ["--section", rng.choice(SECTIONS)]
    return argv + _width(rng)


def check(rng: Random, file: str, other: str = "") -> list[str]:
    argv = ["check", "--from", file, "--format", rng.choice(FORMATS)]
    argv += [option for option in ("--strict", "--verbose") if rng.random() < 0.2]
    if rng.random() < 0.1:
        argv += ["--scope", rng.choice(("auto", "all", "node", "process"))]
    if rng.random() < 0.1:
        argv += [
            "--gpus",
            rng.choice(("0", "0,1", "7", "²", "GPU-0", "99999999999999999999", "0000:00:06.0", ",", "-1")),
        ]
    if rng.random() < 0.1:
        argv += ["--write-policy", "policy.toml"]
    if rng.random() < 0.1:
        argv += ["--metrics", "metrics.prom"]
    return argv + _width(rng)


def emit(rng: Random, file: str, other: str = "") -> list[str]:
    kind = rng.choice(KINDS)
    if kind.startswith("topology-"):
        return ["emit", kind, file, *([other] if other else [])]
    argv = ["emit", kind, "--from", file]
    if kind == "rankfile":
        argv += ["--nodes", rng.choice(("n1", "gpu[01-04]", "a,b"))]
    return argv


def nccl(rng: Random, file: str, other: str = "") -> list[str]:
    what = rng.choice(("env", "topo", "predict", "predict"))
    argv = ["nccl", what, "--from", file, "--format", rng.choice(("text", "json"))]
    if what == "env" and rng.random() < 0.3:
        argv.append("--all")
    if what == "predict":
        if rng.random() < 0.5:
            argv.append("--why")
        if rng.random() < 0.2:
            argv += [
                "--set",
                rng.choice(
                    (
                        "NCCL_P2P_LEVEL=²",
                        "NCCL_NET_GDR_LEVEL=9999999999999999999",
                        "NCCL_IB_HCA==mlx5_²",
                        "NCCL_SHM_DISABLE=1",
                        "X=",
                        "=",
                    )
                ),
            ]
    return argv


def placement(rng: Random, file: str, other: str = "") -> list[str]:
    argv = [
        "placement",
        "--from",
        file,
        *(["--from", other] if other else []),
        "--format",
        rng.choice(("text", "json")),
    ]
    if rng.random() < 0.3:
        argv += ["--launcher", rng.choice(("srun", "mpirun", "torchrun"))]
    if rng.random() < 0.3:
        argv += ["--ranks-per-node", rng.choice(("1", "3", "8", "4096"))]
    return argv


def snapshot(rng: Random, file: str, other: str = "") -> list[str]:
    return rng.choice(
        (
            ["snapshot", "show", file],
            ["snapshot", "show", file, "--grep", rng.choice(("nvml", "read", ""))],
            ["snapshot", "show", file, "--tree", "tree"],
            ["snapshot", "save", "out.snap", "--from", file],
            ["snapshot", "save", "out.snap", "--from", file, "--keep-identifiers"],
        )
    )


def fleet(rng: Random, file: str, other: str = "") -> list[str]:
    argv = [
        "fleet",
        file,
        *([other] if other else []),
        "--processes",
        "1",
        "--format",
        rng.choice(("text", "json", "html", "csv")),
    ]
    return argv + (["--all"] if rng.random() < 0.3 else []) + (["--strict"] if rng.random() < 0.2 else [])


def diff(rng: Random, file: str, other: str = "") -> list[str]:
    pair = [file, other or file]
    rng.shuffle(pair)
    return ["diff", *pair, "--format", rng.choice(("text", "json")), *(["--same-node"] if rng.random() < 0.3 else [])]


def _width(rng: Random) -> list[str]:
    return ["--width", rng.choice(("1", "40", "79", "200", "10000"))] if rng.random() < 0.2 else []
