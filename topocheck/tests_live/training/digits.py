"""A small real task: scikit-learn's handwritten digits (its package ships them), or images of a file such as MNIST's.

The model is a perceptron of one hidden layer. The global batch is the same for any number of ranks, each of which takes
its part of it; so one rank and several compute the same up to rounding, and what compression changes shows in the
accuracy.
"""

from __future__ import annotations

import gzip
import importlib.util
import io
import zlib
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec

from topocheck.host.input import read_file
from topocheck.model.base import InputError
from topocheck.tests_live.training import idx

GLOBAL_BATCH = 96
"""Divides by 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48 ranks."""
MAX_BYTES = 1 << 20
"""Of the file, packed or not; it has 58 KB, 265 KB unpacked."""
TEST = 360
SEED = 7


class Learned(msgspec.Struct, frozen=True, kw_only=True):
    """Accuracy on the held-out digits, seconds of one epoch, and how many there were."""

    accuracy: float
    epoch_s: float
    epochs: int


class DigitsError(Exception):
    """The data are not to be had; says what to install."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What is learned: inputs (a row each, values from 0 to `most`) and labels, to train and to test."""

    x: Any
    y: Any
    test_x: Any
    test_y: Any
    most: float
    classes: int = 10


def load(torch: Any, path: str = "") -> Task:
    """Return the digits of scikit-learn, or the images of an idx file (idx.py).

    Raises:
        DigitsError: scikit-learn is not installed, or the file is not to be used.
    """
    if path:
        return _from_file(torch, Path(path))
    rows = torch.tensor(read_rows(), dtype=torch.float32)
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(SEED))]
    x, y = rows[:, :64], rows[:, 64].long()
    return Task(x=x[:-TEST], y=y[:-TEST], test_x=x[-TEST:], test_y=y[-TEST:], most=16)


def _from_file(torch: Any, path: Path) -> Task:
    try:
        train, test = idx.read_split(path)
    except InputError as e:
        raise DigitsError(str(e)) from None

    def tensors(images: idx.Images) -> tuple[Any, Any]:
        x = torch.frombuffer(bytearray(images.data), dtype=torch.uint8).reshape(images.count, images.pixels)
        return x, torch.frombuffer(bytearray(images.labels), dtype=torch.uint8).long()

    (x, y), (test_x, test_y) = tensors(train), tensors(test)
    classes = 1 + max(max(train.labels), max(test.labels))
    return Task(x=x, y=y, test_x=test_x, test_y=test_y, most=255, classes=classes)


def read_rows() -> list[list[float]]:
    """Return 1797 rows of 64 pixels (0 to 16) and the digit, from the file that scikit-learn's load_digits reads.

    The file itself, since importing scikit-learn takes each rank seconds, and scipy.

    Raises:
        DigitsError: scikit-learn is not installed, or is not of the known form.
    """
    spec = importlib.util.find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise DigitsError("scikit-learn is not installed: pip install scikit-learn")
    path = Path(next(iter(spec.submodule_search_locations))) / "datasets" / "data" / "digits.csv.gz"
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(read_file(path, MAX_BYTES, "the digits"))) as file:
            text = file.read(MAX_BYTES).decode("ascii")
        rows = [[float(v) for v in line.split(",")] for line in text.splitlines() if line.strip()]
    except (OSError, EOFError, ValueError, zlib.error, InputError) as e:
        raise DigitsError(f"{path}: not the digits that scikit-learn ships ({e})") from None
    if not rows or any(len(r) != 65 for r in rows):
        raise DigitsError(f"{path}: expected rows of 64 pixels and a digit")
    return rows


def network(torch: Any, task: Task) -> Any:
    """Return the model, the same on every rank."""
    torch.manual_seed(SEED)
    inputs = task.x.shape[1]
    return torch.nn.Sequential(torch.nn.Linear(inputs, 128), torch.nn.ReLU(), torch.nn.Linear(128, task.classes))


def learn(
    torch: Any,
    task: Task,
    net: Any,
    run_on: Any,
    rank: int,
    ranks: int,
    epochs: int,
    device: Any,
    after: Callable[[], None],
    late: Callable[[float], bool],
) -> Learned:
    """Train and test.

    Args:
        torch: the module.
        task: what is learned.
        net: the model itself, to be tested.
        run_on: what the batch goes through: the model, or DDP around it.
        rank: of this process in its group.
        ranks: in the group.
        epochs: passes over the training digits.
        device: of the model.
        after: called between backward and the optimizer's step, for gradients that are averaged by hand.
        late: given the seconds so far after each epoch, tells whether to stop, alike on all ranks.
    """
    x, y, test_x, test_y = (t.to(device) for t in (task.x, task.y, task.test_x, task.test_y))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    order = torch.Generator().manual_seed(SEED)
    loss_of = torch.nn.functional.cross_entropy
    whole = len(x) // GLOBAL_BATCH * GLOBAL_BATCH
    begun, done = perf_counter(), 0
    while done < epochs:
        done += 1
        for part in torch.randperm(len(x), generator=order)[:whole].split(GLOBAL_BATCH):
            mine = part[rank::ranks].to(device)
            optimizer.zero_grad()
            loss_of(run_on(x[mine].float() / task.most), y[mine]).backward()
            after()
            optimizer.step()
        if late(perf_counter() - begun):
            break
    with torch.no_grad():
        right = (net(test_x.float() / task.most).argmax(1) == test_y).sum().item()
    return Learned(accuracy=right / len(test_y), epoch_s=(perf_counter() - begun) / done, epochs=done)
