"""Held against the code itself: nothing that comes from outside is unpickled, and nothing of torch's listens for us."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "topocheck"
PICKLING_MODULES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "xmlrpc"}
# torch.distributed pickles objects; its elastic launcher and its rpc do, and listen; TCPStore and env:// listen.
TORCH_NAMES = {
    "all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list", "send_object_list",
    "recv_object_list", "TCPStore", "elastic_launch", "LaunchConfig", "init_rpc",
}  # fmt: skip
TORCH_MODULES = (
    "torch.distributed.elastic",
    "torch.distributed.launcher",
    "torch.distributed.run",
    "torch.distributed.rpc",
    "torch.multiprocessing",
)
# mpi4py's methods in lower case pickle; those in upper case move buffers. These names are torch's nowhere.
MPI_ALWAYS = {"bcast", "allgather", "allreduce", "sendrecv", "alltoall", "exscan", "isendrecv", "ibcast"}
# These are, and a file's or socket's: forbidden on what is named as a communicator is.
MPI_ON_COMM = {"send", "recv", "isend", "irecv", "ssend", "bsend", "gather", "scatter", "reduce", "scan"}
COMMUNICATORS = {"comm", "COMM_WORLD", "COMM_SELF", "communicator", "MPI"}


def problems(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            for name in names:
                if name.split(".")[0] in PICKLING_MODULES or name.startswith(TORCH_MODULES):
                    yield node.lineno, f"import {name}"
            if isinstance(node, ast.ImportFrom):
                yield from ((node.lineno, a.name) for a in node.names if a.name in TORCH_NAMES)
        elif isinstance(node, ast.Attribute):
            if node.attr in TORCH_NAMES or node.attr in MPI_ALWAYS:
                yield node.lineno, f".{node.attr}"
            owner = ast.unparse(node.value).rpartition(".")[2]
            if node.attr in MPI_ON_COMM and owner in COMMUNICATORS:
                yield node.lineno, f"{owner}.{node.attr}"
            if (owner, node.attr) in {("torch", "load"), ("np", "load"), ("numpy", "load"), ("torch", "hub")}:
                yield node.lineno, f"{owner}.{node.attr}"
        elif isinstance(node, ast.keyword) and node.arg in {"allow_pickle", "init_method"}:
            yield node.value.lineno, f"{node.arg}="
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in {"eval", "exec", "compile"}
        ):
            yield node.lineno, f"{ast.unparse(node.func)}()"


def test_nothing_is_unpickled_and_torch_opens_no_store() -> None:
    wrong = []
    for f in sorted(PACKAGE.rglob("*.py")):
        name = f.relative_to(PACKAGE).as_posix()
        wrong += [f"{name}:{line}: {what}" for line, what in problems(ast.parse(f.read_text()))]
    assert wrong == []


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from shelve import open",
        "from torch.distributed import TCPStore",
        "from torch.distributed.launcher.api import elastic_launch",
        "dist.all_gather_object(out, mine, group=control)",
        "torch.distributed.init_process_group('gloo', init_method='env://')",
        "once = comm.allreduce(x)",
        "self.comm.gather(x)",
        "MPI.COMM_WORLD.bcast(x, root=0)",
        "comm.recv()",
        "torch.load(path)",
        "numpy.load(path, allow_pickle=True)",
        "eval(text)",
    ],
)
def test_the_guard_sees_it(code: str) -> None:
    assert list(problems(ast.parse(code)))


def test_the_guard_leaves_buffers_and_sockets_alone() -> None:
    fine = (
        "comm.Bcast(b)\nself.comm.Allreduce(a, b)\ndist.send(t, 1)\nconnection.recv(4)\nevents.send('x')\n"
        "dist.all_gather(a, b)\nre.compile(x)"
    )
    assert list(problems(ast.parse(fine))) == []
