"""What a snapshot with replaced identifiers holds: nothing that is not on the allow-list, and all that checks need."""

from __future__ import annotations

import ast
import functools
import gzip
import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import run
from tests.host.canaries import CANARIES, NEEDLES, PLANTS, found, planted
from tests.machines.builder import case_names, machine, names
from tests.support.recorder import Recorder
from tests.support.snapshots import record
from topocheck import host
from topocheck.cli.check import check
from topocheck.cli.report import report
from topocheck.cli.snapshot import save as save_command
from topocheck.host.base import Answer, Host, HostError, RecordedBackend, key
from topocheck.host.live import filters
from topocheck.host.live import nvml as nvml_calls
from topocheck.host.recording.anonymize import anonymize
from topocheck.host.recording.pseudonyms import Mapping
from topocheck.host.recording.redaction import Redaction
from topocheck.host.recording.snapshot import load, save
from topocheck.knowledge.nccl import settings
from topocheck.model.base import Reason
from topocheck.pipeline import build_report
from topocheck.probes.kept.table import ROWS, table
from topocheck.probes.registry import OPTIONAL_PROBES, PROBE_SET_VERSION, PROBES

pytestmark = pytest.mark.slow

SECRET = b"0123456789abcdef"
EVERY = (*names(), *case_names())
RECORDINGS = Path(__file__).parents[1] / "recordings"
JOB = {
    "environment": {
        "CUDA_VISIBLE_DEVICES": "0,1",
        "OMPI_COMM_WORLD_RANK": "0",
        "OMPI_MCA_btl": "tcp,self",
        "UCX_TLS": "rc,cuda_copy",
        "NCCL_TOPO_FILE": "/shared/topo.xml",
        "NCCL_CONF_FILE": "/shared/nccl.conf",
        "SLURM_JOB_NODELIST": "gpu[1-2]",
        "SLURM_JOB_ID": "4711",
        "LANG": "C.UTF-8",
    },
    "commands": {
        "mpirun --version": "mpirun (Open MPI) 5.0.3\n\nReport bugs to https://www.open-mpi.org/community/help/\n",
        "ompi_info --parsable --param mpi all --level 9": "mca:mpi:base:param:mpi_built_with_cuda_support:value:true\n",
        "slurmd -V": "slurm 23.11.4\n",
        "sinfo --version": "slurm 23.11.4\n",
        "dcgmi --version": "dcgmi  version: 3.3.5\n",
        "ofed_info -s": "MLNX_OFED_LINUX-24.10-1.1.4.0:\n",
        "ucx_info -v": "# Library version: 1.17.0\n# Configured with: --prefix=/opt/ucx\n",
        "lstopo-no-graphics --version": "lstopo-no-graphics 2.10.0\n",
        "nvidia-smi topo -m": "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV18\t0-31\nGPU1\tNV18\t X \t0-31\n",
        "nvidia-smi topo -mp": "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPHB\t0-31\nGPU1\tPHB\t X \t0-31\n",
    },
    "process": {"home": "/home/alice", "sys_path": ["/opt/conda/lib/python3.11/site-packages"]},
    "files": {
        "/etc/slurm/slurm.conf": {"text": "x"},
        "/etc/nccl.conf": {"text": "NCCL_DEBUG=WARN\nNCCL_IB_HCA=mlx5\n"},
        "/shared/nccl.conf": {"text": "NCCL_SOCKET_IFNAME=eth0\n"},
        "/shared/topo.xml": {"text": '<system version="1">\n  <cpu numaid="0" host_hash="0x1"/>\n</system>\n'},
        "/dev/shm/nccl-AbCd12": {"text": "x"},
        "/etc/systemd/logind.conf.d/50-ipc.conf": {"text": "RemoveIPC=no\n"},
        "/opt/conda/lib/python3.11/site-packages/torch-2.5.0+cu124.dist-info": {"folder": True},
        "/opt/conda/lib/python3.11/site-packages/torch/version.py": {
            "text": "__version__ = '2.5.0+cu124'\ncuda: Optional[str] = '12.4'\n"
        },
        "/usr/local/cuda/version.json": {"text": '{"cuda": {"name": "CUDA SDK", "version": "12.4.1"}}'},
        "/usr/lib/x86_64-linux-gnu/libnccl.so.2": {"link": "libnccl.so.2.21.5"},
        "/run/systemd/container": {"text": "docker"},
        "/proc/self/cgroup": {"text": "0::/kubepods.slice/kubepods-pod8932f937_d72c_4106_c12f_20bd9faed9f6.slice\n"},
    },
}
"""What no described machine has by itself."""


RARE: dict[str, Answer] = {
    "realpath:/sys/class/net/storage0/device": "/sys/devices/pci0000:00/0000:00:1c.0/0000:01:00.0",
    "readlink:/sys/class/net/storage0/master": "../bond0",
    "read:/sys/class/net/bonding_masters": b"bond0 storage-bond\n",
    "read:/sys/class/net/bond0/bonding/slaves": b"eth0 eth1 storage0\n",
    "read:/proc/xen/capabilities": b"control_d\n",
    "lspci:0000:3b:00.0": "3b:00.0 3D controller [0302]: NVIDIA Corporation GH100 [10de:2330] (rev a1)\n"
    "\tCapabilities: [60] Express (v2) Endpoint, MSI 00\n\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16",
    "sources:": {"files": [{"name": "node7.txt", "formats": ["lspci -tv"]}], "unseen": ["PCI links"]},
}
"""What neither asks."""


@functools.cache
def everything() -> dict[str, Answer]:
    """Every question of the probes on all described machines and recordings; the answer of the last that has one."""
    out: dict[str, Answer] = {}
    machines = [_everything("hgx_h100_cx7", **JOB), *map(_everything, EVERY)]
    recordings = [load(str(file))[1] for file in RECORDINGS.glob("*.snap")]
    for answers in (RARE, *machines, *recordings):
        for question, answer in answers.items():
            if isinstance(out.get(question), HostError | None):
                out[question] = answer
    return out


@functools.cache
def asked() -> dict[str, Answer]:
    """One question and answer of each row and kind of answer."""
    out: dict[str, Answer] = {}
    seen: set[tuple[int, str]] = set()
    for question, answer in everything().items():
        row = table().find(question)
        kind = (id(row and row[0]), type(answer).__name__)
        if kind not in seen or row is None:
            seen.add(kind)
            out[question] = answer
    return out


def _everything(name: str, **overrides: Any) -> dict[str, Answer]:
    recorder = Recorder(machine(name, **overrides).backend)
    for probe in (*PROBES, *OPTIONAL_PROBES):
        try:
            probe.read(Host(recorder))
        except HostError:
            continue
    return recorder.answers


# -- the table


def test_every_question_that_probes_ask_is_in_the_table() -> None:
    """A probe that asks something new needs a row in topocheck/probes/kept/table.py."""
    left_out = set()
    for answers in (RARE, _everything("hgx_h100_cx7", **JOB), *map(_everything, EVERY)):
        r = Redaction(Mapping(SECRET))
        table().learn(r, answers)
        left_out |= {q for q in answers if table().question(r, q) is None}
    assert left_out == set()


def test_every_row_is_asked() -> None:
    """So that what a row keeps is tried below."""
    tried = {id(row[0]) for q in everything() if (row := table().find(q))}
    assert [f"{row.kind}:{row.subject}" for row in ROWS if id(row) not in tried] == []


def test_every_call_of_nvml_and_cuda_is_in_the_table() -> None:
    calls = [f"nvml:{call}|0" for call in nvml_calls.CALLS]
    assert [c for c in calls if table().find(c) is None] == []


@pytest.mark.parametrize(
    "question",
    [
        "read:/etc/passwd",
        "read:/root/.ssh/id_ed25519",
        "read:/home/wjones/topo.xml",
        "list:/home",
        "run:2|hostname",
        "run:2|scontrol|show|node|borealis",
        "environ",
        "nvml:DeviceGetSomethingNew|0",
        "lines:/proc/self/status|Name:",
        "read:/sys/class/net/../../etc/shadow/mtu",
        "unknown:/x",
    ],
)
def test_a_question_that_is_not_in_the_table_is_left_out(question: str) -> None:
    assert anonymize({question: b"borealis"}, table()) == {}


# -- canaries

FITS = {
    "serial of digits": (
        "number",
        "numbers",
        "limits",
        "counters",
        "lists",
        "list",
        "sizes",
        "process",
        "files",
        "module",
    ),
    "guid number": ("number", "numbers", "counters", "PCI", "module"),
    "ipv4": ("version", "versions", "files", "config"),
    "bare mac": ("numbers",),
}
"""Canary -> words of the rows whose answers are numbers or versions, of which it may be one."""


@pytest.mark.parametrize("how", PLANTS)
def test_no_canary_is_kept_in_any_answer(how: str) -> None:
    """Each planted in the answer to each question, in every place where it leaves room for a text."""
    leaks = []
    for (shape, canary), (question, answer) in itertools.product(CANARIES.items(), asked().items()):
        row = table().find(question)
        if row is None or set(FITS.get(shape, ())) & set(row[0].stays.replace(",", " ").replace(";", " ").split()):
            continue
        after = anonymize({question: planted(answer, PLANTS[how], canary)}, table(), SECRET)
        if needles := found(after):
            leaks.append((shape, question, needles, after))
    assert not leaks, f"{len(leaks)} leaks; the first: {leaks[:3]}"


HOSTILE: tuple[Answer, ...] = (
    *(None, True, -1, 1 << 63, 0.5, "", "\0", "a" * 50_000, "auth" * 10_000, "//" * 20_000, "a:" * 20_000),
    *("<!--" * 10_000, "/" * 20_000, "a/" * 10_000, "a" * 10_000 + "!", b"", b"\xff" * 20_000, b"-" * 50_000),
    *([], ["", "/"], [None, [["a"]], {}], [["inet", "x"]] * 1000, {}, {"": "", "a": {"b": []}}),
    *({"stdout": None, "rc": "x"}, {"uid": "x", "sys_path": [1]}, {"NCCL_DEBUG": ["x"]}),
    *(HostError(Reason.UNPARSABLE, "read:" * 10_000), HostError(Reason.ABSENT, "x" * 20_000)),
)


@pytest.mark.parametrize("n", range(len(HOSTILE)))
def test_any_answer_to_any_question(n: int) -> None:
    """Never an exception, never another shape, and no longer than its length takes."""
    answers = dict.fromkeys(asked(), HOSTILE[n])
    after = anonymize(answers, table())
    assert len(after) > 0.9 * len(answers)
    for answer in after.values():
        assert type(answer) is type(HOSTILE[n])


VARIABLES = sorted({*settings(), *filters.VARIABLES, *filters.KNOWN, "NCCL_NEW", "UCX_NEW", "OMPI_MCA_NEW", "GLOO_NEW"})


@pytest.mark.parametrize("how", PLANTS)
def test_no_canary_is_kept_in_any_setting(how: str) -> None:
    """Each planted in the value of each variable and of each line of NCCL's files."""
    usual = {name: s.words[0] if s.words else "1" for name, s in settings().items()}
    leaks = []
    for shape, canary in CANARIES.items():
        values = {name: PLANTS[how](usual.get(name, "0"), canary) for name in VARIABLES}
        answers: dict[str, Answer] = {
            "environ:": values,
            "conf:/etc/nccl.conf": [f"{n}\t{name}={value}" for n, (name, value) in enumerate(values.items(), 1)],
        }
        after = anonymize(answers, table(), SECRET)
        assert len(after["environ:"]) == len(VARIABLES)
        for name, value in after["environ:"].items():
            leaks += [(shape, name, value)] if found(value) else []
        leaks += [(shape, line) for line in after["conf:/etc/nccl.conf"] if found(line)]
    assert leaks == []


@pytest.mark.parametrize(
    "name", ["NCCL_BOREALIS_QUEUE", "UCX_BOREALIS_X", "OMPI_MCA_orte_borealis", "TORCH_NCCL_WJONES"]
)
def test_names_of_variables_that_are_not_public_are_replaced(name: str) -> None:
    after = anonymize({"environ:": {name: "1"}, "conf:/etc/nccl.conf": [f"1\t{name}=1"]}, table())
    prefix = name.split("_")[0]
    assert list(after["environ:"]) == [next(iter(after["environ:"]))]
    assert next(iter(after["environ:"])).startswith(f"{prefix}_")
    assert found(after) == []


@pytest.mark.parametrize(
    "name", ["NCCL_IB_DISABEL", "NCCL_DEBUG", "NCCL_TESTS_X", "UCX_RNDV_THRESH", "OMPI_MCA_btl_tcp_if_include"]
)
def test_names_that_are_public_or_nearly_so_stay(name: str) -> None:
    assert list(anonymize({"environ:": {name: "1"}}, table())["environ:"]) == [name]


class Planted:
    """A described machine that plants a canary in each answer, another by each question."""

    def __init__(self, inner: Any, turn: int) -> None:
        self.inner = inner
        self.turn = turn

    def ask(self, kind: str, *args: str | int) -> Answer:
        n = sum(map(ord, key(kind, args))) + self.turn
        canary = list(CANARIES.values())[n % len(CANARIES)]
        plant = list(PLANTS.values())[n // len(CANARIES) % len(PLANTS)]
        try:
            answer = self.inner.ask(kind, *args)
        except HostError as e:
            error: HostError = planted(e, plant, canary)
            raise error from None
        if kind in ("list", "environ", "process", "conf") or n % 3 == 0:
            return planted(answer, plant, canary)
        return answer


@pytest.mark.parametrize("turn", range(4))
def test_no_canary_in_a_snapshot_nor_in_what_is_made_of_it(turn: int, tmp_path: Path) -> None:
    recorder = Recorder(Planted(machine("hgx_h100_cx7", **JOB).backend, turn * 7))
    build_report(Host(recorder))
    raw, path = tmp_path / "raw.snap", tmp_path / "machine.snap"
    save(str(raw), recorder.answers, probe_set=PROBE_SET_VERSION)
    assert len(found(recorder.answers)) > 20, "they were planted"
    assert run(save_command, path, "--from", raw).code == 0
    assert found(load(str(path))[1]) == []
    compressed = path.read_bytes()
    outputs = [gzip.decompress(compressed).decode(), repr(compressed[:64])]
    outputs += [run(report, "--from", path, "--format", f).out for f in ("text", "json", "markdown")]
    formats = ("text", "json", "junit", "sarif", "nagios", "npd", "nhc", "slurm-prolog", "prometheus", "nfd")
    outputs += [run(check, "--from", path, "--format", f).out for f in formats]
    assert all(len(o) > 10 for o in outputs[:6])
    assert [n for n in NEEDLES if any(n in o.lower() for o in outputs)] == []


SECRETS = ("token", "key", "url")


@pytest.mark.parametrize("shape", SECRETS)
@pytest.mark.parametrize(
    "name",
    ["NCCL_NET_TOKEN", "NCCL_SOCKET_IFNAME", "NCCL_DEBUG", "NCCL_COMM_ID", "UCX_TLS", "UCX_OTHER", "OMPI_MCA_pml",
     "OMPI_MCA_orte_hnp_uri", "RCCL_X", "GLOO_X", "TORCH_NCCL_X", "MASTER_ADDR", "NCCL_IB_TIMEOUT"],
)  # fmt: skip
def test_secrets_stay_outside_even_where_identifiers_are_kept(shape: str, name: str, tmp_path: Path) -> None:
    overrides = {
        "environment": {name: CANARIES[shape]},
        "files": {"/etc/nccl.conf": {"text": f"{name}={CANARIES[shape]}\n"}},
    }
    answers = record("laptop", **overrides)
    secret = {"url": ("hunter2secret", "Zm9vYmFy")}.get(shape, (CANARIES[shape],))
    assert [s for s in secret if s in repr(answers)] == []
    raw, path = tmp_path / "raw.snap", tmp_path / "kept.snap"
    old = {**answers, "environ:": {name: CANARIES[shape]}, "conf:/etc/nccl.conf": [f"1\t{name}={CANARIES[shape]}"]}
    save(str(raw), old, probe_set=PROBE_SET_VERSION)
    assert run(save_command, path, "--from", raw, "--keep-identifiers").code == 0
    assert [s for s in secret if s in repr(load(str(path))[1])] == []


# -- nothing is lost that is needed


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("run:30|lstopo-no-graphics|--of|xml|-", {"rc": 0, "stdout": "<topology>", "stderr": ""}),
        ("read:/etc/hosts", b"127.0.0.1 localhost"),
        ("list:/tmp", ["a"]),
    ],
)
def test_a_question_of_no_probe_gets_its_whole_answer(question: str, answer: Answer) -> None:
    """Commands ask by the same door, and record nothing."""
    assert filters.kept(question, answer) == answer


def reasons() -> list[str]:
    """Every reason that topocheck's own code gives for a missing answer; values in them stand as 7."""
    out = []
    for file in sorted(Path(host.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "HostError" and len(node.args) == 2:
                text = node.args[1]
                if isinstance(text, ast.JoinedStr):
                    out.append("".join(str(p.value) if isinstance(p, ast.Constant) else "7" for p in text.values))
                elif isinstance(text, ast.Constant):
                    out.append(str(text.value))
    return out


def test_own_words_of_a_missing_answer_stay() -> None:
    texts = [*reasons(), "ENOENT", "NVMLError_GpuIsLost", "CUDA_ERROR_SYSTEM_NOT_READY", "signal 11", "NVMLError_999"]
    assert len(texts) > 15
    for text in texts:
        after = anonymize({"conf:/etc/nccl.conf": HostError(Reason.ABSENT, text)}, table())
        assert after["conf:/etc/nccl.conf"].detail == text


def test_a_question_in_a_reason_is_replaced_as_the_question_is() -> None:
    question = "read:/sys/fs/cgroup/user.slice/user-48213.slice/memory.max"
    answers = {
        question: HostError(Reason.TIMED_OUT, "no answer in 3 s"),
        "probe:limits": {"state": "timed_out", "ms": 3000.0, "detail": f"{question}: no answer in 3 s"},
    }
    after = anonymize(answers, table())
    new = next(q for q in after if q.startswith("read:"))
    assert new == question.replace("48213", "1000")
    assert after["probe:limits"] == {"state": "timed_out", "ms": 3000.0, "detail": f"{new}: no answer in 3 s"}


def test_saving_a_snapshot_again_does_not_bring_identifiers_back(tmp_path: Path) -> None:
    raw, once, again = (tmp_path / n for n in ("raw", "once", "again"))
    save(str(raw), record("laptop"), probe_set=PROBE_SET_VERSION)
    assert run(save_command, once, "--from", raw).code == 0
    assert run(save_command, again, "--from", once, "--keep-identifiers").code == 0
    assert load(str(once))[0].identifiers == load(str(again))[0].identifiers == "replaced"


@pytest.mark.parametrize("name", EVERY)
def test_findings_are_the_same(name: str) -> None:
    answers = record(name)
    kept = build_report(Host(RecordedBackend(answers), name))
    replaced = build_report(Host(RecordedBackend(anonymize(answers, table())), name))

    def told(report: Any) -> list[Any]:
        return [(f.id, f.state, len(f.evidence), bool(f.fix)) for f in report.findings]

    assert told(replaced) == told(kept)
    assert [(r.id, r.state) for r in replaced.results] == [(r.id, r.state) for r in kept.results]
    assert [(v.verdict, v.link) for v in replaced.gpudirect.p2p] == [(v.verdict, v.link) for v in kept.gpudirect.p2p]
    assert [v.verdict for v in replaced.gpudirect.rdma] == [v.verdict for v in kept.gpudirect.rdma]
    assert [p.class_ for p in replaced.topology.paths] == [p.class_ for p in kept.topology.paths]
