"""Versions without importing. Outputs of programs are restated from those programs' own manuals and sources."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.probes.answers import Answers, host_of
from topocheck.host.base import Host, HostError
from topocheck.model.base import Missing, Reason
from topocheck.probes import software
from topocheck.probes.software import read, read_commands

SITE = "/opt/env/lib/python3.11/site-packages"
TORCH = "__version__ = '2.5.1+cu124'\ndebug = False\ncuda: Optional[str] = '12.4'\nhip: Optional[str] = None\n"


def test_packages_by_the_first_folder_of_the_path():
    second = "/usr/lib/python3/dist-packages"
    host = host_of(
        {
            "process:": {
                "python_version": "3.11.9",
                "sys_path": ["", "/data/job", "/usr/lib/python3.11", SITE, second],
            },
            f"list:{SITE}": [
                "nvidia_nccl_cu12-2.21.5.dist-info",
                "torch",
                "torch-2.5.1+cu124.dist-info",
                "mpi4py-4.0.0.dist-info",
            ],
            f"list:{second}": [
                "torch-1.13.1.egg-info",
                "deepspeed-0.14.0-py3.11.egg-info",
                "Megatron.Core-0.9.0.dist-info",
            ],
            f"read:{SITE}/torch/version.py|4096": TORCH,
        }
    )
    facts = read(host)
    assert facts.versions == {
        "python": "3.11.9",
        "torch": "2.5.1+cu124",
        "torch_cuda": "12.4",
        "nccl": "2.21.5",
        "mpi4py": "4.0.0",
        "deepspeed": "0.14.0",
        "megatron_core": "0.9.0",
    }
    assert facts.raw[f"{SITE}/nvidia_nccl_cu12-2.21.5.dist-info"] == "2.21.5"


def test_only_folders_of_packages_are_listed():
    backend = Answers({"process:": {"sys_path": ["", "/home/ada/secret", "relative/site-packages", SITE, SITE + "/"]}})
    read(Host(backend, "test"))
    assert [q for q in backend.asked if q.startswith("list:")] == [f"list:{SITE}", "list:/etc/ld.so.conf.d"]


def test_of_two_nccl_packages_the_one_for_torchs_cuda_counts():
    names = ["nvidia_nccl_cu12-2.21.5.dist-info", "nvidia_nccl_cu13-2.28.3.dist-info", "torch-2.5.1+cu124.dist-info"]
    answers = {"process:": {"sys_path": [SITE]}, f"list:{SITE}": names}
    assert read(host_of(answers)).versions["nccl"] == "2.28.3"
    answers[f"read:{SITE}/torch/version.py|4096"] = TORCH
    assert read(host_of(answers)).versions["nccl"] == "2.21.5"


def test_files_of_the_system():
    facts = read(
        host_of(
            {
                "readlink:/usr/lib/x86_64-linux-gnu/libnccl.so.2": "libnccl.so.2.19.3",
                "readlink:/usr/local/lib/libnccl.so.2": "libnccl.so.2.27.7",
                "read:/usr/local/cuda/version.json|65536": '{"cuda": {"name": "CUDA SDK", "version": "12.4.1"}, '
                '"nsight": {"name": "n", "version": "1"}}',
                "read:/sys/module/nvidia/version|65536": "550.54.15\n",
                "read:/sys/module/mlx5_core/version|65536": "24.10-0.7.0\n",
            }
        )
    )
    assert facts.versions == {
        "nccl_system": "2.19.3",
        "cuda_toolkit": "12.4.1",
        "driver": "550.54.15",
        "mlx5_core": "24.10-0.7.0",
    }
    assert facts.raw["python"].startswith("!not_recorded")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CUDA Version 10.1.243\n", "10.1.243"),
        ('{"cuda": {"version": "13.0.0"}}', "13.0.0"),
        ('{"cuda": "13.0.0"}', None),
        ("{", None),
        ("", None),
    ],
)
def test_cuda_toolkit(text, expected):
    got = software.parse_cuda_toolkit(text)
    assert got == expected if expected else isinstance(got, Missing)


def test_library_name_without_a_version_is_unparsable():
    assert software.parse_nccl_file("/etc/alternatives/libnccl.so.2.18.1") == "2.18.1"
    assert isinstance(software.parse_nccl_file("/etc/alternatives/libnccl.so.2"), Missing)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mpirun (Open MPI) 5.0.3\n\nReport bugs to ...\n", ("Open MPI", "5.0.3")),
        ("mpiexec (OpenRTE) 4.1.4\n", ("Open MPI", "4.1.4")),
        (
            "HYDRA build details:\n    Version:                                 4.2.1\n    Release Date: x\n",
            ("MPICH", "4.2.1"),
        ),
        (
            "Intel(R) MPI Library for Linux* OS, Version 2021.9 Build 20230306 (id: d82b3071db)\nCopyright\n",
            ("Intel MPI", "2021.9"),
        ),
        (
            "Intel(R) MPI Library for Linux* OS, Version 2019 Update 12 Build 20210416\n",
            ("Intel MPI", "2019 update 12"),
        ),
        ("some other launcher 1.0\n", None),
    ],
)
def test_mpirun(text, expected):
    assert software.parse_mpirun(text) == expected


def test_cuda_aware():
    line = "mca:mpi:base:param:mpi_built_with_cuda_support:value:{}\nmca:mpi:base:param:mpi_param_check:value:true\n"
    assert software.parse_ompi_cuda(line.format("true")) is True
    assert software.parse_ompi_cuda(line.format("false")) is False
    renamed = "mca:opal:base:param:opal_built_with_cuda_support:value:true"
    assert software.parse_ompi_cuda(renamed) is True
    assert isinstance(software.parse_ompi_cuda("mca:mpi:base:param:mpi_param_check:value:true"), Missing)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("slurm-wlm 22.05.8\n", "22.05.8"),
        ("slurm 24.05.3\n", "24.05.3"),
        ("dcgmi  version: 3.3.5\n", "3.3.5"),
        ("Fabric Manager version is : 550.54.15\n", "550.54.15"),
        ("MLNX_OFED_LINUX-24.10-0.7.0.0:\n", "24.10-0.7.0.0"),
        ("# Library version: 1.16.0\n# Library path: /usr/lib/libucs.so.0\n", "1.16.0"),
        ("lstopo-no-graphics 2.9.0\n", "2.9.0"),
    ],
)
def test_version_numbers(text, expected):
    assert software.parse_version_number(text) == expected


def run(stdout, rc=0):
    return {"rc": rc, "stdout": stdout, "stderr": ""}


OMPI_INFO = "run:2|ompi_info|--parsable|--param|mpi|all|--level|9"


class Programs:
    """A machine with a few programs and files; every other is absent."""

    def __init__(self, programs, readable=()):
        self.programs, self.readable, self.asked, self.environ = programs, readable, [], {}

    def ask(self, kind, *args):
        self.asked.append(args)
        if kind == "access":
            if args[0] in self.readable:
                return True
            raise HostError(Reason.ABSENT, "ENOENT")
        if kind == "environ":
            return self.environ
        if kind == "run" and args[1] in self.programs:
            answer = self.programs[args[1]]
            if isinstance(answer, HostError):
                raise answer
            return answer
        raise HostError(Reason.ABSENT, "ENOENT")


def test_commands_that_are_there():
    facts = read_commands(
        Host(
            Programs(
                {
                    "mpirun": run("mpirun (Open MPI) 4.1.4\n"),
                    "ompi_info": run("mca:mpi:base:param:mpi_built_with_cuda_support:value:true\n"),
                    "slurmd": run("slurm-wlm 22.05.8\n"),
                    "dcgmi": run("", rc=1),
                    "ofed_info": HostError(Reason.TIMED_OUT, "2 s"),
                }
            ),
            "test",
        )
    )
    assert facts.versions == {"mpi": "4.1.4", "slurm": "22.05.8"}
    assert facts.mpi_implementation == "Open MPI"
    assert isinstance(facts.mpi_cuda_aware, Missing), "asked inside a job only: it takes longer than a report"
    assert facts.raw["dcgmi --version"] == "!unsupported: exit status 1"
    assert facts.raw["ofed_info -s"] == "!timed_out: 2 s"


def test_cuda_awareness_is_asked_inside_a_job():
    programs = Programs(
        {
            "mpirun": run("mpirun (Open MPI) 4.1.4\n"),
            "ompi_info": run("mca:mpi:base:param:mpi_built_with_cuda_support:value:true\n"),
        }
    )
    programs.environ = {"OMPI_COMM_WORLD_RANK": "0"}
    assert read_commands(Host(programs, "test")).mpi_cuda_aware is True


def test_no_programs_at_all():
    facts = read_commands(Host(Programs({}), "test"))
    assert (facts.versions, facts.raw) == ({}, {})
    assert facts.mpi_cuda_aware == software.ABSENT


def test_other_mpi_says_nothing_of_cuda():
    facts = read_commands(Host(Programs({"mpirun": run("HYDRA build details:\n Version: 4.2.1\n")}), "test"))
    assert facts.mpi_implementation == "MPICH"
    assert facts.mpi_cuda_aware == software.UNSUPPORTED


def test_sinfo_is_asked_only_beside_a_configuration():
    # Without one it asks the DNS for its controller.
    without = Programs({"sinfo": run("slurm 24.05.3\n")})
    assert "slurm" not in read_commands(Host(without, "test")).versions
    assert not any("sinfo" in args for args in without.asked)
    beside = Programs({"sinfo": run("slurm 24.05.3\n")}, readable=("/etc/slurm/slurm.conf",))
    assert read_commands(Host(beside, "test")).versions["slurm"] == "24.05.3"


@given(st.text(max_size=300))
def test_arbitrary_text_never_raises(text):
    software.parse_mpirun(text)
    software.parse_ompi_cuda(text)
    software.parse_version_number(text)
    software.parse_cuda_toolkit(text)
    software.parse_torch_version(text)
    software.parse_nccl_file(text)
    software.parse_distributions([text, f"torch-{text}.dist-info"])


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda x: st.lists(x) | st.dictionaries(st.text(max_size=5), x),
        max_leaves=8,
    )
)
def test_arbitrary_json_never_raises(value):
    import json

    software.parse_cuda_toolkit(json.dumps({"cuda": value}))
