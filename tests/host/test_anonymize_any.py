"""What holds of the replacement whatever a machine answers."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.host.anonymizing import IB, SECRET, anonymize
from tests.support.snapshots import record
from topocheck.host.base import Answer
from topocheck.host.recording.pseudonyms import Mapping
from topocheck.host.recording.redaction import Redaction
from topocheck.model.hostlist import expand_hostlist
from topocheck.probes.modules import CONFIG

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda i: st.lists(i, max_size=3) | st.dictionaries(st.text(), i, max_size=3),
)
HEXISH = st.text("0123456789abcdef:-./ GPUMIGserial", max_size=60)
QUESTIONS = st.sampled_from(
    [
        *(
            "conf:/etc/nccl.conf",
            "environ:",
            "process:",
            "psutil:net_addresses",
            "nvml:DeviceGetSerial|0",
            "run:2|slurmd|-V",
        ),
        *("read:/proc/sys/kernel/hostname", f"read:{IB}/node_guid", f"read:{IB}/ports/1/gids/0", "list:/sys/class/net"),
        *("read:/sys/bus/pci/devices/0000:3b:00.0/config|1024", "probe:pci", "pci_names:10de:2330", "list:/dev/shm"),
        *("read:/var/run/nvidia-topologyd/virtualTopology.xml", "read:/proc/self/cgroup", "stat:/dev/shm", "now:"),
        *(
            "nvml:DeviceGetGpuFabricInfoV|0",
            "readlink:/sys/class/net/eth0/master",
            "kernel_options:",
            "read:/proc/cpuinfo|4096",
        ),
    ]
)


@settings(max_examples=200)
@given(
    st.dictionaries(
        QUESTIONS,
        JSON | HEXISH | st.lists(HEXISH, max_size=3) | st.binary(max_size=80) | HEXISH.map(str.encode),
        max_size=5,
    )
)
def test_any_answers(answers: dict[str, Any]) -> None:
    """Never an exception, never another shape."""
    after = anonymize(answers, SECRET)
    assert len(after) == len(answers)
    for question, answer in answers.items():
        assert type(after[question]) is type(answer)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("gpu[01-03,7],login", ["gpu01", "gpu02", "gpu03", "gpu7", "login"]),
        ("rack[1-2]n[3-4]", ["rack1n3", "rack1n4", "rack2n3", "rack2n4"]),
        ("a,b", ["a", "b"]),
        ("a[x-y]", ["a[x-y]"]),
        ("a[1", ["a", "1"]),
        ("", []),
        ("a[1-999999999]", ["a[1-999999999]"]),
    ],
)
def test_hostlist(text: str, hosts: list[str]) -> None:
    assert expand_hostlist(text) == hosts


@given(st.text("ab[]-,0123456789", max_size=40))
def test_any_hostlist(text: str) -> None:
    assert len(expand_hostlist(text)) <= 1 << 16


# -- names keep their relations

NAMES = st.text("abcdegx019._-", min_size=1, max_size=12)
LISTS = st.lists(NAMES, max_size=8, unique=True)


@given(LISTS)
def test_names_of_devices_keep_their_beginnings_and_stay_different(names: list[str]) -> None:
    r = Redaction(Mapping(SECRET))
    own = [n for n in names if not r.device_is_public(n)]
    new = [r.device(n) for n in own]
    assert len(set(new)) == len(own)
    for a, x in zip(own, new, strict=True):
        for b, y in zip(own, new, strict=True):
            assert y.startswith(x) == b.startswith(a)
        assert not r.device_is_public(x), "no pseudonym is the name of another device"
        assert r.device(a) == x


def test_a_setting_means_the_same_devices() -> None:
    """`stor` is the beginning of storage0 and storage1, `e` of eth0 and edge0; `=` asks for exact names."""
    names = ["eth0", "edge0", "storage0", "storage1", "mlx5_0"]
    environ = {"NCCL_SOCKET_IFNAME": "e,stor", "NCCL_OOB_NET_IFNAME": "^=storage0,eth0", "NCCL_IB_HCA": "mlx5_0:1"}
    after = anonymize({"list:/sys/class/net": names, "environ:": environ}, SECRET)
    new = dict(zip(names, after["list:/sys/class/net"], strict=True))
    first, second = after["environ:"]["NCCL_SOCKET_IFNAME"].split(",")
    assert [n for n in new if new[n].startswith(first)] == ["eth0", "edge0"]
    assert [n for n in new if new[n].startswith(second)] == ["storage0", "storage1"]
    assert after["environ:"]["NCCL_OOB_NET_IFNAME"] == f"^={new['storage0']},eth0"
    assert after["environ:"]["NCCL_IB_HCA"] == "mlx5_0:1"
    assert "storage" not in repr(after)
    assert "edge" not in repr(after)


def test_names_of_one_pattern_are_replaced_alike_on_every_node() -> None:
    """Else nodes of one kind would differ in a fleet."""
    one = anonymize({"list:/sys/class/net": ["fabric0", "fabric1", "mgmt-lan"]})
    other = anonymize({"list:/sys/class/net": ["fabric0", "fabric1", "mgmt-lan"]})
    assert one == other


PATHS = st.lists(
    st.sampled_from("alice data home usr lib job_4711 a.xml x pod7 docker slice 5f5f5f5f5f5f".split()), max_size=5
)


@given(st.lists(PATHS, max_size=6))
def test_paths_and_control_groups_stay_different_and_share_their_folders(paths: list[list[str]]) -> None:
    for method in (Redaction.path, Redaction.cgroup):
        r = Redaction(Mapping(SECRET))
        texts = sorted({"/" + "/".join(p) for p in paths})
        new = [method(r, t) for t in texts]
        assert len(set(new)) == len(texts)
        for a, x in zip(texts, new, strict=True):
            assert x.count("/") == a.count("/")
            for b, y in zip(texts, new, strict=True):
                if b.startswith(f"{a}/"):
                    assert y.startswith(f"{x}/")


@given(st.lists(st.integers(0, 1 << 32), max_size=6, unique=True), LISTS)
def test_numbers_users_and_unknown_texts_stay_different(numbers: list[int], names: list[str]) -> None:
    r = Redaction(Mapping(SECRET))
    assert len({r.map.uid(n) for n in numbers}) == len(numbers)
    assert len({r.number(str(n)) for n in numbers}) == len(numbers)
    assert len({r.user(n) for n in names}) == len(names)
    unknown = {r.unknown(n) for n in names}
    assert len(unknown) == len(names)
    assert {r.unknown(u) for u in unknown} == unknown, "what was replaced once stays"


@pytest.mark.parametrize("name", ["hgx_h100_cx7", "laptop", "h22_mixed_gpus"])
def test_replaced_again_it_has_the_same_form(name: str) -> None:
    answers = record(name)
    once = anonymize(answers)
    twice = anonymize(once)
    assert len(twice) == len(once) == len(answers)
    assert repr(anonymize(answers, SECRET)) == repr(anonymize(answers, SECRET))

    def form(text: str) -> str:
        return re.sub("[0-9a-f]", "0", text)

    left = [q for q in twice if q not in once]
    assert left == [], "names have their second names"
    assert form(repr(twice["environ:"])) == form(repr(once["environ:"]))


def test_the_order_of_drop_ins_stays() -> None:
    """The last by name counts (logind.conf(5))."""
    folder = "/etc/systemd/logind.conf.d"
    answers: dict[str, Answer] = {f"list:{folder}": ["10-z.conf", "50-a.conf", "readme"]}
    for name, value in (("10-z.conf", "yes"), ("50-a.conf", "no")):
        answers[f"lines:{folder}/{name}|RemoveIPC"] = [f"RemoveIPC={value}"]
    after = anonymize(answers)
    files = [n for n in after[f"list:{folder}"] if n.endswith(".conf")]
    assert files == sorted(files)
    assert [after[f"lines:{folder}/{n}|RemoveIPC"] for n in files] == [["RemoveIPC=yes"], ["RemoveIPC=no"]]


def test_the_release_of_a_kernel_is_the_same_in_questions() -> None:
    """Its parts are numbered alike wherever they stand; another version holds another word before."""
    release = "6.8.0-orchid7-tulip"
    prefixes = "|".join(CONFIG)
    after = anonymize(
        {
            "nvml:SystemGetDriverVersion": "580.65.06-tulip",
            "read:/proc/sys/kernel/osrelease": f"{release}\n".encode(),
            f"lines:/lib/modules/{release}/config|{prefixes}": ["CONFIG_PCI_P2PDMA=y"],
        }
    )
    new = after["read:/proc/sys/kernel/osrelease"].decode().strip()
    assert new.startswith("6.8.0-redacted-")
    assert after[f"lines:/lib/modules/{new}/config|{prefixes}"] == ["CONFIG_PCI_P2PDMA=y"]
    assert "tulip" not in repr(after)
