"""Longer texts in a snapshot: topology files of NCCL, matrices of nvidia-smi, and reasons for a missing answer."""

from __future__ import annotations

import bisect
import errno
import re
from collections.abc import Callable, Sequence

from topocheck.host.live import cuda as cuda_calls
from topocheck.host.live import nvml as nvml_calls
from topocheck.host.recording import forms, identifiers
from topocheck.host.recording import vocabulary as words
from topocheck.host.recording.forms import Form
from topocheck.host.recording.redaction import Redaction

_ELEMENTS = frozenset("system cpu pci gpu nic net nvlink c2c pcilink graphs graph channel nvswitch version".split())
_HEX = forms.exactly("", r"(?:0x)?[0-9a-fA-F]{1,16}")
_ATTRIBUTES: dict[str, Form] = {
    **dict.fromkeys(
        """version numaid familyid modelid link_width sm rank gdr count bw speed port latency maxconn coll keep
        link_gen id pattern crossnic nchannels speedintra speedinter latencyinter typeintra typeinter samechannels
        maxchannels mlopart""".split(),
        forms.exactly("", r"-?[0-9]{1,20}(?:\.[0-9]{1,9})?", "[A-Z0-9]{1,4}"),
    ),
    "dev": forms.exactly("", r"-?[0-9]{1,20}", "0[xX][0-9a-fA-F]{1,4}"),
    **dict.fromkeys("class vendor device subsystem_vendor subsystem_device tclass".split(), _HEX),
    **dict.fromkeys(("busid", "target"), forms.ADDRESS),
    "affinity": forms.exactly("", r"[0-9a-fA-F,]{1,4096}"),
    "arch": forms.one_of("x86_64 arm64 aarch64 ppc64 ppc64le"),
    "vendor_name": forms.one_of("GenuineIntel AuthenticAMD CentaurHauls ARM"),
    "link_speed": forms.exactly("", r"[0-9.]{1,6} GT/s(?: PCIe)?", "Unknown(?: speed)?", ""),
    "name": forms.DEVICE,
    "guid": Form("", lambda r, t: _hexadecimal(r, t, identifiers.xml_guid)),
    "host_hash": Form("", lambda r, t: _hexadecimal(r, t, lambda m, d: m.hexadecimal(d.zfill(16)))),
}
_CPU_VENDOR = forms.one_of("GenuineIntel AuthenticAMD CentaurHauls   Shanghai   ARM")
_XML = re.compile(
    r"""(?P<comment><!--.*?(?:-->|\Z)) | (?P<tag></?)(?P<element>[^\s<>/="'&]+)
      | (?P<key>[^\s<>/="']+)=(?P<value>"[^"<]*"|'[^'<]*') | (?P<mark>[>/\s="']+|<) | (?P<other>[^\s<>/="']+)""",
    re.VERBOSE | re.DOTALL,
)


def _hexadecimal(r: Redaction, text: str, change: Callable[..., str]) -> str:
    m = re.fullmatch("0x([0-9a-fA-F]{1,16})", text)
    return f"0x{change(r.map, m[1])}" if m else r.unknown(text)


def topology(r: Redaction, text: str) -> str:
    """Return a topology file of NCCL: its own elements and attributes stay, each value by its form.

    A file that is broken stays broken in the same places; comments lose their text, and keep their lines.
    """
    element = ""

    def one(m: re.Match[str]) -> str:
        nonlocal element
        if m["comment"] is not None:
            ended = m["comment"].endswith("-->") and len(m["comment"]) > 6
            return "<!--" + "\n" * m["comment"].count("\n") + ("-->" if ended else "")
        if m["tag"] is not None:
            element = m["element"]
            return m["tag"] + (element if element in _ELEMENTS else r.unknown(element))
        if m["key"] is not None:
            key = m["key"]
            form = _CPU_VENDOR if (element, key) == ("cpu", "vendor") else _ATTRIBUTES.get(key)
            quote, value = m["value"][0], m["value"][1:-1]
            new = r.unknown(value) if form is None else form(r, value)
            return f"{key if form else r.unknown(key)}={quote}{new}{quote}"
        return m["mark"] if m["mark"] is not None else r.unknown(m["other"])

    return _XML.sub(one, text)


_CELL = re.compile(
    r"""(?:NV\d{1,3}|NODE|PIX|PXB|PHB|SYS|SOC|X|CNS|GNS|TNS|OK|NS|DR|U|N/A)+ | (?:GPU|NIC)\d{1,3}:?
      | \d{1,4}(?:[,\-]\d{1,4}){0,256}""",
    re.VERBOSE | re.ASCII,
)
_LEGEND = frozenset(
    """legend = self connection traversing pcie as well the smp interconnect between numa nodes e.g qpi/upi host bridges
    within a node bridge typically cpu multiple without at most single bonded set of # nvlinks nv# nic affinity gpu id
    and internal switch switches failed to run topology matrix along chipset supported not disabled unknown ok
    regression topology-not""".split()
) | {""}


def matrix(r: Redaction, text: str) -> str:
    """Return what `nvidia-smi topo` printed: cells, labels, names of devices and the words of its legends stay."""

    def one(m: re.Match[str]) -> str:
        word = m[0]
        plain = re.sub(r"\x1b\[[0-9;]{0,8}m", "", word)
        if not plain or _CELL.fullmatch(plain) or plain.lower().strip("(),.:") in _LEGEND:
            return word
        public = r.device_is_public(plain) or plain in r.interfaces
        return word.replace(plain, r.device(plain) if public else r.unknown(plain))

    return re.sub(r"\S+", one, text)


_DETAIL_WORD = re.compile(
    r"""NVMLError(?:_(?:Uninitialized|InvalidArgument|NotSupported|NoPermission|AlreadyInitialized|NotFound
          |InsufficientSize|InsufficientPower|DriverNotLoaded|Timeout|IrqIssue|LibraryNotFound|FunctionNotFound
          |CorruptedInforom|GpuIsLost|ResetRequired|OperatingSystem|LibRmVersionMismatch|InUse|Memory|NoData
          |VgpuEccNotSupported|InsufficientResources|FreqNotSupported|ArgumentVersionMismatch|Deprecated|NotReady
          |GpuNotFound|InvalidState|ResetTypeNotSupported|Unknown|\d{1,5}))? | CUDA_ERROR_[A-Z_]{3,40}
      | -?\d{1,6}(?:\.\d{1,3})? | SIG[A-Z]{2,6} | \W+
      | (?:Value|Type|Key|Index|Attribute|UnicodeDecode|UnicodeEncode|Import|ModuleNotFound|OS|Runtime|Recursion|Memory
          |NVML|NVMLLibraryMismatch|Overflow|Validation|Decode|FileNotFound|Permission|Timeout|BlockingIO
          |NotImplemented|ZeroDivision)Error
      | c_nvml\w{1,30}_t | (?:mpirun|ompi_info|slurmd|sinfo|dcgmi|ofed_info|ucx_info|systemctl|nvidia-smi|nvidia-imex
          |nv-fabricmanager|lstopo-no-graphics|hwloc-info) | /usr/sbin/slurmd""",
    re.VERBOSE | re.ASCII,
)
_CALLS = nvml_calls.CALLS | cuda_calls.CALLS.keys() | set(cuda_calls.ATTRIBUTES) | {"Init", "DeviceGet", "GetErrorName"}
_ERRNO = frozenset(errno.errorcode.values())


def _is_own(word: str) -> bool:
    """Tell whether a word of a reason is one of topocheck's, or the name of an error or a call."""
    call = word.removeprefix("nvml").removeprefix("cu")
    return word.lower() in words.DETAILS or word in _ERRNO or call in _CALLS or _DETAIL_WORD.fullmatch(word) is not None


_QUESTION = re.compile(r"\b[a-z_]{3,16}:")
_LONGEST_DETAIL = 1000


def detail(r: Redaction, text: str, questions: Sequence[str], rewritten: Callable[[str], str]) -> str:
    """Return the words of a missing answer: topocheck's own, the names of errors, and questions; others are replaced.

    Args:
        r: the replacements.
        text: such as `ENOENT`, or `read:/x: no answer in 3 s`.
        questions: those of the recording, sorted; the text may quote one.
        rewritten: what a question becomes.
    """
    text, out, at = text[:_LONGEST_DETAIL], [], 0
    for m in _QUESTION.finditer(text):
        question = _quoted(questions, text[m.start() :]) if m.start() >= at else ""
        if question:
            out += [_own_words(r, text[at : m.start()]), rewritten(question)]
            at = m.start() + len(question)
    return "".join([*out, _own_words(r, text[at:])])


def _quoted(questions: Sequence[str], text: str) -> str:
    """Return the longest of the sorted questions with which the text begins; empty for none."""
    while text:
        before = questions[place - 1] if (place := bisect.bisect_right(questions, text)) else ""
        if text.startswith(before):
            return before
        # Any other that fits is a beginning of what the two have in common.
        text = text[: next((n for n, (a, b) in enumerate(zip(before, text, strict=False)) if a != b), len(text))]
    return ""


def _own_words(r: Redaction, text: str) -> str:
    def one(m: re.Match[str]) -> str:
        core = m[0].strip("\"'`.,;:()[]!?")
        if not core or _is_own(core):
            return m[0]
        return m[0].replace(core, r.unknown(core))

    return re.sub(r"\S+", one, text)
