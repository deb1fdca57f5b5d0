"""What each kind of line in an NCCL log says."""

from __future__ import annotations

import re

from topocheck.nccl.logs.types import MAX_RANKS, LogComm, LogPair, LogRank, LogWarning, NcclLog

MAX_ITEMS = 1000
"""Most entries of each list of things seen; MAX_PAIRS pairs of ranks are kept."""
MAX_PAIRS = 200_000
MAX_TRANSPORT = 100
MAX_TEXT = 500
"""Bytes kept of a text of which there may be many; NCCL's own lines have at most a thousand."""

HEAD = re.compile(
    rb"(?<![^\s:\[\]<>])([^\s:\[\]<>]+):(\d{1,9}):(\d{1,9}) \[(\d{1,9})\] (?:(\S+:\d+) (?:\([^)]*\) )?)?$"
)
"""Host, process, thread, device, and the source file and line of a warning."""
_VIA = re.compile(
    rb"(?:Channel|Ring) (\d{1,9})(?:/(\d{1,9}))? : (\d{1,9})\[([0-9a-fx]+)\] -> (\d{1,9})\[([0-9a-fx]+)\] (.*)$"
)
_RING = re.compile(rb"Channel (\d{1,9})/(\d{1,9}) :((?: +\d+)+)(.*)$")
_OLD_RING = re.compile(rb"Ring (\d{1,9}) :((?: +\d+)+)$")
_SETTING = re.compile(rb"(NCCL_[A-Z0-9_]+) set (?:by environment )?to (.*?)\.?$")
_VERSION = re.compile(rb"([NR]CCL) version\s{0,9}:?\s{0,9}(\d+\.\d+\.\d+\S*)")
_TAIL = re.compile(rb" comm 0x[0-9a-f]+ nRanks \d+$")
"""What RCCL adds to its lines about channels."""
_COMM = re.compile(
    rb"comm \S+ rank (\d{1,9}) nRanks (\d{1,9}) nNodes (\d{1,9}) localRanks (\d{1,9})"
    rb" localRank (\d{1,9})(?: MNNVL (\d))?"
)
_INIT = re.compile(rb"rank (\d{1,9}) nranks (\d{1,9}) cudaDev (\d{1,9})(?: nvmlDev (\d{1,9}))? busId ([0-9a-f]+)(.*)$")
_COMM_ID = re.compile(rb"commId (0x[0-9a-f]+)")
_HCA = re.compile(rb"\[\d{1,9}\]([^\s:]{1,64}):(\d{1,9})(?::\d{1,9}){0,9}/(\S{1,64})")
_SOCKET = re.compile(rb"\[\d{1,9}\]([^\s:]{1,64}):(\S{1,64})")
_GDR_HCA = re.compile(rb"GPU Direct RDMA (Enabled|Disabled) for HCA \d+ '([^']*)'")
_GDR_PAIR = re.compile(rb"GPU Direct RDMA (Enabled|Disabled) for (GPU .*?)(?: \(distance|$)")
_CHANNELS = re.compile(
    rb"(\d{1,9}) coll channels,(?: (\d{1,9}) collnet channels,)?(?: (\d{1,9}) nvls channels,)? (\d{1,9}) p2p channels"
)
_CONNECTED = re.compile(rb"Connected all rings(?:, use ring PXN (\d) GDR (\d))?")
_PATH = re.compile(rb"(?<![A-Z])([A-Z]{1,9}/[0-9a-fx-]{1,32}) \(\d{1,9}/[\d.]{1,32}/([A-Z0-9]{1,9})\)")
_PATTERN = re.compile(
    rb"Pattern (\d{1,9}), crossNic (\d{1,9}), nChannels (\d{1,9}), "
    rb"(?:bw|speed) (\d{1,9}(?:\.\d{1,9})?)/(\d{1,9}(?:\.\d{1,9})?), type (\w+)/(\w+)"
)
_PATTERNS = {b"1": "Balanced tree", b"2": "Split tree", b"3": "Tree", b"4": "Ring", b"5": "NVLS", b"6": "CollNet"}


class Handlers:
    """Keeps what the lines say. Each handler takes the text of a message and what stands before it in its line."""

    def __init__(self) -> None:
        self.log = NcclLog()
        self._hosts: set[bytes] = set()
        self._seen: dict[int, set[str]] = {}
        self._transports = 0
        self._in_tree = False
        self._full: set[str] = set()
        self._members = 0
        self.completed: dict[bytes, int] = {}

    def _add(self, items: list[str], value: bytes | str, name: str) -> None:
        text = value if isinstance(value, str) else self._text(value[:MAX_TEXT])
        seen = self._seen.setdefault(id(items), set())
        if text in seen:
            return
        if len(items) >= MAX_ITEMS:
            if name not in self._full:
                self._full.add(name)
                self.log.notes.append(f"only the first {MAX_ITEMS} {name} are kept")
            return
        seen.add(text)
        items.append(text)

    def _text(self, raw: bytes) -> str:
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            self.log.undecodable += 1
            return raw.decode("utf-8", "replace")

    def _rank(self, number: int) -> LogRank | None:
        found = self.log.ranks.get(number)
        if found is None:
            if len(self.log.ranks) >= MAX_RANKS:
                return None
            found = self.log.ranks[number] = LogRank(rank=number)
        return found

    def channel(self, text: bytes, before: bytes) -> None:
        """Take a transport line, or a ring."""
        m = _VIA.match(text)
        if m is None:
            self._ring(text)
            return
        way = m[7]
        at = way.find(b"via ")
        if at < 0 or at + 4 >= len(way):
            self.log.cut_lines += 1
            return
        key = (int(m[3]), int(m[5]))
        pair = self.log.pairs.get(key)
        if pair is None:
            if len(self.log.pairs) >= MAX_PAIRS:
                if "pairs" not in self._full:
                    self._full.add("pairs")
                    self.log.notes.append(f"only the first {MAX_PAIRS} pairs of ranks are kept")
                return
            pair = self.log.pairs[key] = LogPair(from_rank=key[0], to_rank=key[1])
        # Sender and receiver log the same channel for NET; what differs (GDRDMA) is kept apart.
        side = "send " if way.startswith(b"[send]") else "receive " if way.startswith(b"[receive]") else ""
        name = side + self._text(_TAIL.sub(b"", way[at + 4 :].strip())[:MAX_TRANSPORT])
        if name in pair.transports:
            pair.transports[name] += 1
        elif len(pair.transports) < 64 and self._transports < 2 * MAX_PAIRS:
            self._transports += 1
            pair.transports[name] = 1

    def _ring(self, text: bytes) -> None:
        m = _RING.match(text)
        if m is None:
            old = _OLD_RING.match(text)
            if old is not None:
                self.log.rings.setdefault(int(old[1]), self._text(old[2].strip()))
            elif b" -> " not in text:
                self.log.cut_lines += 1
            return
        if len(self.log.rings) < MAX_ITEMS:
            self.log.rings.setdefault(int(m[1]), " ".join(self._text(m[3]).split()) + self._text(m[4]).rstrip())

    def trees(self, text: bytes, before: bytes) -> None:
        """Take the trees of a rank."""
        m = re.match(rb"Trees? .*?->(\d{1,9})->", text)
        if m and len(self.log.trees) < MAX_RANKS:
            self.log.trees.setdefault(int(m[1]), self._text(text[6 : 6 + MAX_TEXT]))

    def comm(self, text: bytes, before: bytes) -> None:
        """Take the layout of the job as a rank sees it."""
        m = _COMM.match(text)
        if m is None:
            if b" nranks " in text:
                self.init(text, before)
            return
        log = self.log
        log.nranks = max(log.nranks or 0, int(m[2]))
        log.nnodes = max(log.nnodes or 0, int(m[3]))
        log.local_ranks = max(log.local_ranks or 0, int(m[4]))
        if m[6] is not None:
            log.mnnvl = bool(log.mnnvl) or m[6] != b"0"
        self._place(int(m[1]), before)

    def _place(self, number: int, before: bytes) -> LogRank | None:
        rank = self._rank(number)
        head = HEAD.search(before)
        if rank is not None and head is not None:
            rank.host, rank.pid = self._text(head[1]), int(head[2][:12])
            if head[1] not in self._hosts and len(self._hosts) < MAX_ITEMS:
                self._hosts.add(head[1])
                self.log.hosts.append(rank.host)
        return rank

    def init(self, text: bytes, before: bytes) -> None:
        """Take a line about a rank's init."""
        m = _INIT.search(text)
        if m is None:
            return
        self.log.nranks = max(self.log.nranks or 0, int(m[2]))
        rank = self._place(int(m[1]), before)
        if rank is not None:
            rank.cuda_dev = int(m[3])
            rank.nvml_dev = int(m[4]) if m[4] is not None else rank.nvml_dev
            rank.bus_id = self._text(m[5])
        if b"Init COMPLETE" in m[6]:
            self.log.complete += 1
            head = HEAD.search(before)
            if head is not None and len(self.completed) < MAX_RANKS:
                self.completed[head[1] + b":" + head[2]] = self.log.lines
        self._communicator(m, rank)

    def _communicator(self, m: re.Match[bytes], rank: LogRank | None) -> None:
        id_ = _COMM_ID.search(m[6])
        if id_ is None or rank is None:
            return
        name = self._text(id_[1])
        comm = self.log.comms.get(name)
        if comm is None:
            if len(self.log.comms) >= MAX_ITEMS:
                return
            comm = self.log.comms[name] = LogComm(nranks=int(m[2]))
        if rank.rank not in comm.places and self._members < MAX_PAIRS:
            self._members += 1
            comm.places[rank.rank] = (rank.host, rank.pid or 0)
        if rank.rank in comm.places:
            if b"Init START" in m[6]:
                comm.started.add(rank.rank)
            elif b"Init COMPLETE" in m[6]:
                comm.completed.add(rank.rank)

    def version(self, text: bytes, before: bytes) -> None:
        """Take the version line."""
        m = _VERSION.match(text)
        if m is not None:
            self.log.library = m[1].decode()
            self._add(self.log.versions, m[2], "versions")

    def net(self, text: bytes, before: bytes) -> None:
        """Take the devices a network uses."""
        if b"Direct RDMA" in text:
            self.paths_or_gdr(text)
        elif b"Using" in text:
            if text.startswith(b"NET/IB"):
                for name, port, layer in _HCA.findall(text):
                    self._add(self.log.hcas, name + b":" + port + b"/" + layer, "HCAs")
            else:
                for name, address in _SOCKET.findall(text):
                    self._add(self.log.sockets, name + b":" + address, "interfaces")

    def paths_or_gdr(self, text: bytes) -> None:
        """Take a GPUDirect verdict, or one line of the table of paths."""
        if m := _GDR_HCA.search(text):
            if len(self.log.gdr_of_hca) < MAX_ITEMS:
                # Devices of several hosts share names: one that lacks it anywhere lacks it.
                name = self._text(m[2])
                self.log.gdr_of_hca[name] = m[1] == b"Enabled" and self.log.gdr_of_hca.get(name, True)
        elif m := _GDR_PAIR.search(text):
            if len(self.log.gdr_of_pair) < MAX_ITEMS:
                self.log.gdr_of_pair[self._text(m[2][:MAX_TEXT])] = m[1] == b"Enabled"
        elif b" :" in text and len(self.log.path_types) < MAX_PAIRS:
            before, _, rest = text.partition(b" :")
            start = self._text(before[:MAX_TEXT])
            for end, kind in _PATH.findall(rest):
                self.log.path_types.setdefault((start, self._text(end)), self._text(kind))

    def plugin(self, text: bytes, before: bytes) -> None:
        """Take a line about a network plugin."""
        self._add(self.log.plugins, text, "plugin lines")

    def bootstrap(self, text: bytes, before: bytes) -> None:
        """Take the interface of the start-up traffic."""
        _, using, name = text.partition(b"Using ")
        if using:
            self._add(self.log.bootstrap, name.strip(), "bootstrap interfaces")

    def using(self, text: bytes, before: bytes) -> None:
        """Take the network that was chosen."""
        if text.startswith(b"Using network "):
            name = text[14:].strip()
            self._add(self.log.networks, name, "networks")
            head = HEAD.search(before)
            host = self._text(head[1]) if head is not None else ""
            if host and (host in self.log.network_of or len(self.log.network_of) < MAX_ITEMS):
                text_name = name[:MAX_TEXT].decode("utf-8", "replace")
                self._add(self.log.network_of.setdefault(host, []), text_name, f"networks of {host}")

    def driver(self, text: bytes, before: bytes) -> None:
        """Take the driver's version."""
        self._add(self.log.drivers, text[18:].strip(), "drivers")

    def setting(self, text: bytes) -> None:
        """Take a setting in force."""
        m = _SETTING.match(text)
        if m is None:
            self.log.cut_lines += b" set by" in text
            return
        name = self._text(m[1][:MAX_TEXT])
        if name in self.log.settings or len(self.log.settings) < MAX_ITEMS:
            self._add(self.log.settings.setdefault(name, []), m[2].strip(), f"values of {name}")

    def nvls(self, text: bytes, before: bytes) -> None:
        """Take what was found about multicast."""
        if text.startswith(b"NVLS multicast support is "):
            self.log.nvls = b"not available" not in text

    def connected(self, text: bytes, before: bytes) -> None:
        """Take the summary of the rings."""
        m = _CONNECTED.match(text)
        if m is not None and m[1] is not None:
            self.log.pxn_summary = bool(self.log.pxn_summary) or m[1] == b"1"
            self.log.gdr_summary = bool(self.log.gdr_summary) or m[2] == b"1"

    def count(self, text: bytes) -> None:
        """Take the numbers of channels."""
        m = _CHANNELS.search(text)
        if m is not None:
            for name, value in zip(("coll", "collnet", "nvls", "p2p"), m.groups(), strict=True):
                if value is not None:
                    self.log.channels[name] = int(value)

    def pattern(self, text: bytes, before: bytes) -> None:
        """Take a result of the search."""
        m = _PATTERN.match(text)
        if m is not None and int(m[3]):
            name = _PATTERNS.get(m[1], "pattern " + self._text(m[1]))
            rates = f"{float(m[4]):.1f}/{float(m[5]):.1f} GB/s"
            words = f"{name}: {int(m[3])} channels of {rates}, {self._text(m[6])}/{self._text(m[7])}"
            self._add(self.log.patterns, words, "search results")

    def tree_start(self, text: bytes, before: bytes) -> None:
        """Take the head of the topology tree; only the first tree is kept."""
        self._in_tree = b"System" in text and not self.log.tree
        if self._in_tree:
            self.log.tree.append(self._text(text))

    def tree_line(self, text: bytes) -> None:
        """Take a line of that tree."""
        if text.startswith(b"====") or len(self.log.tree) >= MAX_ITEMS:
            self._in_tree = False
        elif b" - " in text or text.startswith(b"CPU/"):
            self.log.tree.append(self._text(text))

    def file(self, text: bytes, before: bytes) -> None:
        """Take a line about a topology file."""
        if b"opology file" in text:
            self._add(self.log.topology_file, text.strip(), "topology files")

    def warning(self, host: bytes, raw: bytes) -> None:
        """Take a warning."""
        text = self._text(raw.strip())[:500]
        found = self.log.warnings.get(text)
        if found is not None:
            found.count += 1
        elif len(self.log.warnings) < MAX_ITEMS:
            place = self._text(host)
            self.log.warnings[text] = LogWarning(text=text, count=1, line=self.log.lines, host=place)
        elif "warnings" not in self._full:
            self._full.add("warnings")
            self.log.notes.append(f"only the first {MAX_ITEMS} different warnings are kept")
