"""The idx format, as MNIST is published in: what is read, and what a hostile file may not do."""

from __future__ import annotations

import gzip
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topocheck.model.base import InputError
from topocheck.tests_live.training import idx
from topocheck.tests_live.training.digits import learn, load, network


def images(count: int, rows: int, columns: int, value=lambda i, p: (i * 7 + p) % 256) -> bytes:
    """Return a file as the MNIST page describes it: magic 0x00000803, sizes highest byte first, then the pixels."""
    head = struct.pack(">IIII", 0x803, count, rows, columns)
    return head + bytes(value(i, p) for i in range(count) for p in range(rows * columns))


def labels(*classes: int) -> bytes:
    return struct.pack(">II", 0x801, len(classes)) + bytes(classes)


def write(folder, pictures: bytes, classes: bytes, stem: str = "train", packed: bool = False):
    end = ".gz" if packed else ""
    for name, data in (("images-idx3", pictures), ("labels-idx1", classes)):
        (folder / f"{stem}-{name}-ubyte{end}").write_bytes(gzip.compress(data) if packed else data)
    return folder / f"{stem}-images-idx3-ubyte{end}"


@pytest.mark.parametrize("packed", [False, True])
def test_images_and_labels(tmp_path, packed):
    path = write(tmp_path, images(3, 2, 2), labels(5, 0, 9), packed=packed)
    got = idx.read(path)
    assert (got.count, got.pixels, list(got.labels)) == (3, 4, [5, 0, 9])
    # pixel p of image i is 7 i + p
    assert list(got.data) == [0, 1, 2, 3, 7, 8, 9, 10, 14, 15, 16, 17]


def test_the_test_set_next_to_the_file_is_held_out(tmp_path):
    write(tmp_path, images(2, 2, 2), labels(1, 2), stem="t10k")
    train, test = idx.read_split(write(tmp_path, images(5, 2, 2), labels(1, 2, 3, 4, 5)))
    assert (train.count, test.count) == (5, 2)


def test_without_one_every_sixth_image_is_held_out(tmp_path):
    train, test = idx.read_split(write(tmp_path, images(12, 1, 1), labels(*range(12))))
    assert list(test.labels) == [5, 11]
    assert list(train.labels) == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]
    assert list(test.data) == [35, 77]


@pytest.mark.parametrize(
    ("pictures", "classes", "says"),
    [
        (images(3, 2, 2)[:-1], labels(1, 2, 3), "11 bytes of values; its head says 3 x 2 x 2"),
        (images(3, 2, 2) + b"x", labels(1, 2, 3), "13 bytes of values"),
        (images(3, 2, 2), labels(1, 2), "2 labels for the 3 images"),
        (b"\0\0\x0d\x03" + images(3, 2, 2)[4:], labels(1, 2, 3), "expected the idx format"),
        (b"", labels(1), "expected the idx format"),
        (images(0, 28, 28), labels(), "0 bytes of values"),
        (struct.pack(">IIII", 0x803, 2**32 - 1, 2**32 - 1, 2**32 - 1), labels(1), "its head says 4294967295"),
        (images(2, 1, 5000), labels(1, 2), "up to 262144 of 4096"),
    ],
    ids=["short", "long", "labels", "floats", "empty", "none", "huge", "pixels"],
)
def test_what_is_no_such_file(tmp_path, pictures, classes, says):
    with pytest.raises(InputError, match=says):
        idx.read(write(tmp_path, pictures, classes))


def test_a_bomb_is_not_unpacked_to_its_end(tmp_path):
    path = write(tmp_path, images(1, 1, 1), labels(1), packed=True)
    path.write_bytes(gzip.compress(bytes(idx.MAX_BYTES + 1), compresslevel=9))
    with pytest.raises(InputError, match="more than 128 MiB unpacked"):
        idx.read(path)


def test_damaged_gzip(tmp_path):
    path = write(tmp_path, images(3, 2, 2), labels(1, 2, 3), packed=True)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InputError, match="damaged gzip"):
        idx.read(path)


def test_a_name_without_labels(tmp_path):
    (tmp_path / "data.bin").write_bytes(images(3, 2, 2))
    with pytest.raises(InputError, match="expected a name such as train-images-idx3-ubyte"):
        idx.read(tmp_path / "data.bin")


@given(st.binary(max_size=64))
def test_any_bytes_are_read_or_refused(data):
    try:
        sizes, values = idx.parse(data, (1, 2, 3), "x")
    except InputError:
        return
    total = 1
    for n in sizes:
        total *= n
    assert total == len(values) == len(data) - 4 - 4 * len(sizes)


@pytest.mark.torch
def test_a_perceptron_learns_them(tmp_path):
    torch = pytest.importorskip("torch")
    # Two classes that differ in one pixel of four.
    classes = [i % 2 for i in range(240)]
    pictures = images(240, 2, 2, lambda i, p: 255 * (i % 2) if p == 0 else 17 * p)
    task = load(torch, str(write(tmp_path, pictures, labels(*classes))))
    assert (task.x.shape, task.test_x.shape, task.classes) == ((200, 4), (40, 4), 2)
    net = network(torch, task)
    got = learn(torch, task, net, net, 0, 1, 20, torch.device("cpu"), lambda: None, lambda s: False)
    assert got.accuracy == 1.0
