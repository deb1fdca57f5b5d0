"""NCCL's settings: precedence and file form as in NCCL's src/misc/param.cc (setEnvFile, initEnv)."""

from hypothesis import given
from hypothesis import strategies as st

from tests.probes.answers import Answers, host_of
from topocheck.host.base import Host, HostError
from topocheck.model.base import Missing, Reason
from topocheck.model.system import Setting
from topocheck.probes.settings import in_force, parse_conf, read

DEFAULT = "/var/run/nvidia-topologyd/virtualTopology.xml"  # NCCL's src/graph/topo.cc
ABSENT = HostError(Reason.ABSENT, "ENOENT")
DENIED = HostError(Reason.DENIED, "EACCES")


def machine(environ, user=ABSENT, system=ABSENT, user_path="/home/ada/.nccl.conf"):
    return host_of(
        {
            "environ:": environ,
            "process:": {"home": "/home/ada", "sys_path": []},
            f"conf:{user_path}": user,
            "conf:/etc/nccl.conf": system,
        }
    )


def told(facts):
    return [(s.name, s.value, s.source, s.in_force) for s in facts.nccl]


def test_environment_then_user_file_then_system_file():
    facts = read(
        machine(
            {"NCCL_DEBUG": "WARN"},
            ["1\tNCCL_DEBUG=INFO", "2\tNCCL_IB_HCA=mlx5_0"],
            ["4\tNCCL_IB_HCA=mlx5_1", "5\tNCCL_ALGO=Ring"],
        )
    )
    assert told(facts) == [
        ("NCCL_DEBUG", "WARN", "environment", True),
        ("NCCL_DEBUG", "INFO", "/home/ada/.nccl.conf:1", False),
        ("NCCL_IB_HCA", "mlx5_0", "/home/ada/.nccl.conf:2", True),
        ("NCCL_IB_HCA", "mlx5_1", "/etc/nccl.conf:4", False),
        ("NCCL_ALGO", "Ring", "/etc/nccl.conf:5", True),
    ]
    assert facts.conf_files == {"/home/ada/.nccl.conf": (), "/etc/nccl.conf": ()}
    assert facts.raw["/etc/nccl.conf:5"] == "NCCL_ALGO=Ring"


def test_upper_line_of_a_file_wins():
    facts = read(machine({}, system=["1\tNCCL_NET=IB", "2\tNCCL_NET=Socket"]))
    assert [(s.value, s.in_force) for s in facts.nccl] == [("IB", True), ("Socket", False)]


def test_empty_variable_has_no_effect_but_keeps_the_file_out():
    # setenv(name, value, 0) leaves a variable that is there, and an empty one reads as unset.
    facts = read(machine({"NCCL_P2P_LEVEL": ""}, system=["1\tNCCL_P2P_LEVEL=SYS"]))
    assert [s.in_force for s in facts.nccl] == [False, False]


def test_nccl_conf_file_replaces_the_one_at_home_and_tilde_is_no_home():
    environ = {"NCCL_CONF_FILE": "/data/nccl.conf"}
    facts = read(machine(environ, ["1\tNCCL_NET=IB"], user_path="/data/nccl.conf"))
    assert facts.nccl[-1].source == "/data/nccl.conf:1"
    assert "/home/ada/.nccl.conf" not in facts.conf_files
    facts = read(machine({"NCCL_CONF_FILE": "~/nccl.conf"}))
    assert facts.conf_files["~/nccl.conf"].reason is Reason.NOT_VISIBLE_HERE
    assert facts.conf_files["/etc/nccl.conf"].reason is Reason.ABSENT


def test_status_of_files_that_could_not_be_read():
    facts = read(machine({}, DENIED, HostError(Reason.UNSUPPORTED, "EISDIR")))
    assert facts.conf_files == {
        "/home/ada/.nccl.conf": DENIED.missing(),
        "/etc/nccl.conf": Missing(Reason.UNSUPPORTED, "EISDIR"),
    }


def test_comment_and_other_lines_are_left_out():
    settings, notes = parse_conf("/etc/nccl.conf", ["1\t#NCCL_DEBUG=INFO", "2\tHTTP_PROXY=x", "3\tNCCL_DEBUG", "bad"])
    assert (settings, notes) == ([], [])


def test_blank_beside_the_name_makes_another_name():
    settings, notes = parse_conf("/etc/nccl.conf", ["1\tNCCL_DEBUG =INFO", "2\t NCCL_NET=IB", "3\tNCCL_ALGO=Ring "])
    assert [(s.name, s.value, s.in_force) for s in settings] == [
        ("NCCL_DEBUG", "INFO", False),
        ("NCCL_NET", "IB", False),
        ("NCCL_ALGO", "Ring ", True),
    ]
    assert [n[:7] for n in notes] == ["line 1:", "line 2:"]
    # Such a line shadows nothing.
    assert [s.in_force for s in in_force([*settings, Setting(name="NCCL_NET", value="Socket", source="x")])] == [
        False, False, True, True,
    ]  # fmt: skip


def test_carriage_return_is_told():
    settings, notes = parse_conf("/etc/nccl.conf", ["7\tNCCL_DEBUG=INFO\r"])
    assert settings[0].value == "INFO"
    assert "carriage return" in notes[0]


def test_neighbours_and_nothing_of_the_terminal():
    facts = read(machine({"CUDA_VISIBLE_DEVICES": "0,1", "RANK": "3", "LANG": "C", "NCCL_DEBUG": "INFO"}))
    assert [s.name for s in facts.related] == ["CUDA_VISIBLE_DEVICES", "RANK"]


def test_environment_that_cannot_be_read_loses_only_itself():
    host = host_of({"process:": {"home": "/"}, "conf:/.nccl.conf": ABSENT, "conf:/etc/nccl.conf": ["1\tNCCL_NET=IB"]})
    facts = read(host)
    assert [s.name for s in facts.nccl] == ["NCCL_NET"]
    assert facts.raw["environment"].startswith("!not_recorded")


def test_file_is_asked_for_settings_only():
    backend = Answers({"environ:": {}, "process:": {"home": "/h"}})
    read(Host(backend, "test"))
    assert backend.asked == ["environ:", "process:", "conf:/h/.nccl.conf", "conf:/etc/nccl.conf", f"read:{DEFAULT}"]


def with_topo(environ, files, system=ABSENT):
    reads = {f"read:{path}": answer for path, answer in files.items()}
    return read(host_of({"environ:": environ, "process:": {"home": "/"}, "conf:/etc/nccl.conf": system, **reads}))


def test_topology_file_of_the_environment_and_of_a_file():
    facts = with_topo({"NCCL_TOPO_FILE": "/opt/t.xml"}, {"/opt/t.xml": b"<system/>", DEFAULT: b"<other/>"})
    assert (facts.topo_file_path, facts.topo_file) == ("/opt/t.xml", "<system/>")
    facts = with_topo({}, {"/opt/u.xml": b"<system/>"}, ["1\tNCCL_TOPO_FILE=/opt/u.xml"])
    assert (facts.topo_file_path, facts.topo_file) == ("/opt/u.xml", "<system/>")


def test_default_topology_file_counts_where_the_setting_is_unset():
    facts = with_topo({}, {DEFAULT: b"<system version='1'/>"})
    assert (facts.topo_file_path, facts.topo_file) == (DEFAULT, "<system version='1'/>")
    facts = with_topo({}, {DEFAULT: ABSENT})
    assert facts.topo_file_path == ""
    assert facts.topo_file.reason is Reason.ABSENT
    # getenv gives an empty text, which is not NULL: NCCL tries that name and not the default.
    facts = with_topo({"NCCL_TOPO_FILE": ""}, {DEFAULT: b"<system/>"}, ["1\tNCCL_TOPO_FILE=/opt/u.xml"])
    assert facts.topo_file_path == ""


def test_topology_file_that_cannot_be_had_says_why():
    facts = with_topo({"NCCL_TOPO_FILE": "/opt/t.xml"}, {"/opt/t.xml": DENIED})
    assert (facts.topo_file_path, facts.topo_file.reason) == ("/opt/t.xml", Reason.DENIED)
    facts = with_topo({"NCCL_TOPO_FILE": "t.xml"}, {})
    assert facts.topo_file.reason is Reason.NOT_VISIBLE_HERE
    facts = with_topo({"NCCL_TOPO_FILE": "/opt/t.xml"}, {"/opt/t.xml": b"x" * (1 << 20)})
    assert facts.topo_file.reason is Reason.UNSUPPORTED
    # A recording made before this was asked.
    facts = with_topo({}, {})
    assert facts.topo_file.reason is Reason.NOT_RECORDED


@given(
    st.lists(
        st.text(max_size=60) | st.tuples(st.integers(0, 99), st.text(max_size=40)).map(lambda t: f"{t[0]}\t{t[1]}")
    )
)
def test_arbitrary_lines_never_raise(lines):
    settings, _ = parse_conf("/etc/nccl.conf", lines)
    assert all(s.name.startswith("NCCL_") and s.source.startswith("/etc/nccl.conf:") for s in settings)


SETTINGS = st.lists(
    st.builds(
        Setting, name=st.sampled_from(["NCCL_A", "NCCL_B"]), value=st.sampled_from(["", "0", "1"]), source=st.just("s")
    )
)


@given(SETTINGS)
def test_at_most_one_of_a_name_is_in_force_and_it_is_the_first(settings):
    marked = in_force(settings)
    for name in ("NCCL_A", "NCCL_B"):
        mine = [s for s in marked if s.name == name]
        assert [s.in_force for s in mine[1:]] == [False] * len(mine[1:])
        if mine:
            assert mine[0].in_force == (mine[0].value != "")
