"""Variables, settings files, odd paths and odd words on the command line; half of it looks at this machine."""

from __future__ import annotations

import os
from random import Random

from tests.fuzz import commands, corpus, hostile
from tests.fuzz.case import Case, command

NAMES = (
    "NCCL_P2P_LEVEL", "NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "NCCL_DEBUG", "NCCL_TOPO_FILE", "NCCL_CONF_FILE",
    "NCCL_IB_GID_INDEX",
    "NCCL_NET_GDR_LEVEL", "NCCL_ALGO", "NCCL_PROTO", "NCCL_MIN_NCHANNELS", "NCCL_BUFFSIZE", "NCCL_NET_PLUGIN",
    "NCCL_HOSTID",
    "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "OMP_NUM_THREADS", "SLURM_JOB_ID",
    "SLURM_PROCID",
    "SLURM_NTASKS", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST", "SLURM_LOCALID", "SLURM_NODELIST",
    "SLURM_TASKS_PER_NODE", "SLURM_CPUS_PER_TASK", "SLURM_JOB_GPUS", "SLURM_GPUS_ON_NODE", "SLURMD_NODENAME", "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK", "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "PMI_RANK", "COLUMNS", "LINES", "TERM",
    "NO_COLOR", "LANG", "LC_ALL",
    "TZ", "HOME", "PATH", "TMPDIR", "TOPOCHECK_POLICY", "PYTHONIOENCODING", "XDG_CACHE_HOME", "UCX_NET_DEVICES",
    "UCX_TLS",
    "OMPI_MCA_btl_tcp_if_include", "LD_LIBRARY_PATH", "KUBERNETES_SERVICE_HOST", "container", "HOSTNAME", "FORCE_COLOR",
)  # fmt: skip
JOIN = ("RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "SLURM_PROCID")
"""Variables of launchers: with all of them sound, a command waits for ranks that never come."""
ODD = ("fifo", "folder", "loop", "dangling", "denied")
PATHS = (
    "a" * 300, "d/" * 2100 + "x", "", ".", "..", "/dev/null", "/dev/full", "/dev/zero", "/proc/self/mem",
    "/proc/1/environ", "no/such/file",
    "in.snap/x", "-", "~", "\udcff\udcfe", "a\nb", "\x1b[31m", "²", "*", "[", "/proc/self/fd/0", "/dev/stdin",
    "/sys/kernel", "odd", "odd/x",
)  # fmt: skip


def make(rng: Random) -> Case:
    return rng.choice((_variables, _paths, _paths, _words, _recorded))(rng)


def _variables(rng: Random) -> Case:
    env = {n: _value(rng) for n in rng.sample(NAMES, rng.randint(1, 6))}
    files = {"conf": _conf(rng)}
    if rng.random() < 0.5:
        env["NCCL_CONF_FILE"] = b"conf"
    argv = rng.choice(
        (
            ["nccl", "env"],
            ["nccl", "env", "--format", "json"],
            ["check"],
            ["report"],
            ["placement"],
            ["report", "--format", "json"],
        )
    )
    if argv[0] != "nccl" and rng.random() < 0.7:
        files["in.snap"] = corpus.recording("laptop")
        argv = [*argv, "--from", "in.snap"]
    if argv == ["placement"]:
        env = {k: v for k, v in env.items() if k not in JOIN}
    return Case(argv=command(*argv), env=env, files=files)


def _value(rng: Random) -> bytes:
    return hostile.raw(hostile.text(rng).replace("\x00", ""))


def _conf(rng: Random) -> bytes:
    rows = [
        rng.choice(("NCCL_DEBUG=INFO", "NCCL_IB_HCA = mlx5_0", "#", "", "=", "NCCL_X", hostile.text(rng)))
        for _ in range(rng.randrange(9))
    ]
    rows += [f"NCCL_{hostile.text(rng)}={hostile.text(rng)}"]
    return hostile.raw("\n".join(rows))


def _recorded(rng: Random) -> Case:
    """The variables and settings files of a recorded machine."""
    name = corpus.any_machine(rng)
    said = corpus.answers(name).get("environ:")
    environ = {
        **(said if isinstance(said, dict) else {}),
        **{n: hostile.text(rng) for n in rng.sample(NAMES, rng.randint(1, 6))},
    }
    rows = [
        f"{rng.choice((i, hostile.text(rng)))}\t{rng.choice(NAMES)}={hostile.text(rng)}"
        for i in range(rng.randrange(5))
    ]
    changed = {"environ:": environ, "conf:/etc/nccl.conf": rows}
    file = corpus.packed(corpus.recording_text(name, changed))
    return Case(argv=command(*commands.of_recording(rng, "in.snap")), files={"in.snap": file})


def _paths(rng: Random) -> Case:
    """An option whose file is none."""
    path = rng.choice(PATHS)
    files = {"in.snap": corpus.recording("laptop"), "log": b"n1:1:1 [0] NCCL INFO Using network IB\n"}
    argv = rng.choice(
        (
            ["report", "--from", path], ["report", "--smi-topo", path], ["report", "--from", "in.snap", "-o", path],
            ["check", "--from", path], ["check", "--from", "in.snap", "--policy", path],
            ["check", "--from", "in.snap", "-o", path],
            ["check", "--from", "in.snap", "--metrics", path], ["check", "--from", "in.snap", "--write-policy", path],
            ["fleet", path], ["fleet", "in.snap", "--against", path], ["fleet", "in.snap", "-o", path],
            ["fleet", "in.snap", "--policy", path], ["fleet", path, "in.snap"],
            ["diff", path, "in.snap"], ["diff", "in.snap", path], ["diff", "in.snap", "in.snap", "-o", path],
            ["emit", "gres-conf", "--from", path], ["emit", "topology-conf", path],
            ["emit", "numactl", "--from", "in.snap", "-o", path],
            ["placement", "--from", path], ["placement", "--from", "in.snap", "-o", path],
            ["snapshot", "show", path], ["snapshot", "show", "in.snap", "--tree", path],
            ["snapshot", "save", path, "--from", "in.snap"],
            ["snapshot", "save", "out.snap", "--from", path],
            ["nccl", "log", path], ["nccl", "log", "log", "--from", path], ["nccl", "log", "log", "-o", path],
            ["nccl", "log", "log", "--compare", "--from", "in.snap", "--ranks", path],
            ["nccl", "log", "log", "--compare", "--from", "in.snap", "--topo", path],
            ["nccl", "topo", "--input", path, "--no-machine"], ["nccl", "topo", "--from", path],
            ["nccl", "topo", "--from", "in.snap", "-o", path],
            ["nccl", "predict", "--ranks", path], ["nccl", "predict", "--from", "in.snap", "--topo", path],
            ["nccl", "predict", "--from", path],
            ["nccl", "env", "--from", path], ["nccl", "env", "--library", path],
            ["bw", "--baseline", path, "--plan"], ["bw", "--policy", path, "--plan"], ["bw", "--plan", "-o", path],
            ["scale", "--curve", path, "--hooks", "²"],
        )
    )  # fmt: skip
    odd = {"odd": rng.choice(ODD)}
    return Case(argv=command(*(w.replace("\x00", "") for w in argv)), files=files, odd=odd)


def _words(rng: Random) -> Case:
    """Options with values that mean nothing."""
    word = os.fsdecode(hostile.raw(hostile.text(rng).replace("\x00", "")))
    argv = rng.choice(
        (
            ["report", "--from", "in.snap", "--format", word], ["report", "--from", "in.snap", "--section", word],
            ["report", "--from", "in.snap", "--width", word], ["report", word],
            ["check", "--from", "in.snap", "--only", word], ["check", "--from", "in.snap", "--skip", word],
            ["check", "--from", "in.snap", "--gpus", word], ["check", "--from", "in.snap", "--scope", word],
            ["check", "--from", "in.snap", "--budget", word], ["check", "--from", "in.snap", "--on-unknown", word],
            ["check", "--from", "in.snap", "--format", word], ["explain", word], ["schema", word], ["pcie", word, "16"],
            ["pcie", "5", word], ["pcie", "5", "16", "--max-payload", word],
            ["nccl", "env", word], ["nccl", "env", "--from", "in.snap", "--nccl-version", word],
            ["nccl", "predict", "--from", "in.snap", "--set", word],
            ["nccl", "predict", "--from", "in.snap", "--set", f"NCCL_P2P_LEVEL={word}"],
            ["emit", word, "--from", "in.snap"], ["emit", "rankfile", "--from", "in.snap", "--nodes", word],
            ["emit", "rankfile", "--from", "in.snap", "--ranks-per-node", word],
            ["placement", "--from", "in.snap", "--launcher", word], ["placement", "--from", "in.snap", "--nodes", word],
            ["snapshot", "show", "in.snap", "--grep", word], ["snapshot", word], [word], ["fleet", word],
            ["fleet", "in.snap", "--processes", word],
            ["bw", "--plan", "--sizes", word], ["bw", "--plan", "--gpus", word], ["bw", "--plan", "--gradients", word],
            ["bw", "--plan", "--ranks", word], ["bw", "--plan", "--collective", word],
            ["bw", "--plan", "--tolerance", word],
            ["network", "bw", "--transport", word], ["scale", "--buckets", word, "--hooks", "²"],
            ["scale", "--size", word, "--hooks", "²"], ["scale", "--hooks", word + "²"],
        )
    )  # fmt: skip
    return Case(argv=tuple(os.fsencode(w) for w in argv), files={"in.snap": corpus.recording("gh200")})
