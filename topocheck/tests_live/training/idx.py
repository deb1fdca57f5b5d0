"""Images and labels in the idx format, as MNIST, Fashion-MNIST, KMNIST and EMNIST are published in.

The format is that of http://yann.lecun.com/exdb/mnist/: two zero bytes, a byte for the type (8: unsigned bytes), a byte
for the number of dimensions, each dimension as four bytes with the highest first, then the values.
"""

from __future__ import annotations

import gzip
import io
import zlib
from pathlib import Path

import msgspec

from topocheck.host.input import read_file
from topocheck.model.base import InputError

MAX_BYTES = 128 << 20
"""Of one file, packed or not: the images of EMNIST ByMerge have 547 MB and are too many; MNIST's have 47 MB."""
MOST_IMAGES, MOST_PIXELS = 1 << 18, 1 << 12
HELD_OUT = 6
"""Where no test set lies next to the images, every sixth is held out, as in MNIST's 60,000 and 10,000."""
UNSIGNED_BYTES = 0x08


class Images(msgspec.Struct, frozen=True, kw_only=True):
    """Images, each of `pixels` bytes, one after the other, and the class of each."""

    count: int
    pixels: int
    data: bytes
    labels: bytes


def unpack(data: bytes, name: str) -> bytes:
    """Return the content of a file, packed by gzip or not.

    Raises:
        InputError: it is damaged or unpacks to more than MAX_BYTES.
    """
    if data[:2] != b"\x1f\x8b":
        return data
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            out = file.read(MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as e:
        raise InputError(f"{name}: damaged gzip ({e})") from None
    if len(out) > MAX_BYTES:
        raise InputError(f"{name}: more than {MAX_BYTES >> 20} MiB unpacked; expected images in the idx format")
    return out


def parse(data: bytes, dimensions: tuple[int, ...], name: str) -> tuple[tuple[int, ...], bytes]:
    """Return the sizes and the values of an idx file.

    Args:
        data: of the file, unpacked.
        dimensions: how many it may have.
        name: for messages.

    Raises:
        InputError: it is of another type or form, or shorter or longer than it says.
    """
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] != UNSIGNED_BYTES or data[3] not in dimensions:
        many = " or ".join(map(str, dimensions))
        raise InputError(f"{name}: expected the idx format: unsigned bytes in {many} dimensions")
    head = 4 + 4 * data[3]
    sizes = tuple(int.from_bytes(data[i : i + 4], "big") for i in range(4, head, 4))
    total = 1
    for n in sizes:
        total *= n
    if len(data) != head + total or not total:
        shape = " x ".join(map(str, sizes))
        raise InputError(f"{name}: {len(data) - head} bytes of values; its head says {shape}")
    return sizes, data[head:]


def labels_of(images: Path) -> Path:
    """Return where the labels of images lie: the same name with `labels` and `idx1`, as the sets are published.

    Raises:
        InputError: the name is of another form.
    """
    name = images.name.replace("images", "labels").replace("idx3", "idx1")
    if name == images.name:
        raise InputError(f"{images}: expected a name such as train-images-idx3-ubyte.gz, with its labels next to it")
    return images.with_name(name)


def read(path: Path) -> Images:
    """Return the images of a file with their labels.

    Raises:
        InputError: a file cannot be read, or the two do not belong together.
    """
    labels = labels_of(path)
    expected = "a file in the idx format"
    sizes, pixels = parse(unpack(read_file(path, MAX_BYTES, expected), str(path)), (2, 3), str(path))
    (count,), classes = parse(unpack(read_file(labels, MAX_BYTES, expected), str(labels)), (1,), str(labels))
    size = len(pixels) // sizes[0]
    if sizes[0] > MOST_IMAGES or size > MOST_PIXELS:
        raise InputError(f"{path}: {sizes[0]} images of {size} pixels; up to {MOST_IMAGES} of {MOST_PIXELS}")
    if count != sizes[0]:
        raise InputError(f"{labels}: {count} labels for the {sizes[0]} images of {path.name}")
    return Images(count=count, pixels=size, data=pixels, labels=classes)


def read_split(path: Path) -> tuple[Images, Images]:
    """Return what is trained on and what is held out: the test set next to the file, or every sixth image.

    Raises:
        InputError: a file cannot be read, or the two sets have other sizes of images.
    """
    train = read(path)
    beside = path.with_name(path.name.replace("train", "t10k", 1))
    if beside != path and beside.is_file():
        test = read(beside)
        if test.pixels != train.pixels:
            raise InputError(f"{beside}: images of {test.pixels} pixels; those of {path.name} have {train.pixels}")
        return train, test
    if train.count < 2 * HELD_OUT:
        raise InputError(f"{path}: {train.count} images; expected {2 * HELD_OUT} and more")
    held = [i for i in range(train.count) if i % HELD_OUT == HELD_OUT - 1]
    return _taken(train, [i for i in range(train.count) if i % HELD_OUT != HELD_OUT - 1]), _taken(train, held)


def _taken(images: Images, at: list[int]) -> Images:
    n = images.pixels
    return Images(
        count=len(at),
        pixels=n,
        data=b"".join(images.data[i * n : (i + 1) * n] for i in at),
        labels=bytes(images.labels[i] for i in at),
    )
