"""The structure of a GGUF file: metadata, and where the numbers of each tensor stand.

The reader of the package gguf makes several arrays for each token of a vocabulary, which takes
longer than all else; and it does not notice where a file ends.
"""

import os
import struct
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

SCALARS = ("B", "b", "H", "h", "I", "i", "f", "?", None, None, "Q", "q", "d")  # by type number
STRING, ARRAY = 8, 9
VERSIONS = (2, 3)
MAX_RANK = 4
MAX_DEPTH = 4  # of arrays in arrays
LARGE = 1 << 20  # a length that is looked at before it is believed


class GgufTensor(NamedTuple):
    """A tensor that has not been read."""

    shape: tuple[int, ...]  # [outputs, inputs]
    kind: int  # number of its quantisation
    start: int  # offset of its first byte in the file


class GgufFile(NamedTuple):
    """A file that is mapped into memory."""

    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]
    data: np.ndarray  # bytes of the whole file


def take(file: BinaryIO, size: int) -> bytes:
    """The next bytes; a ValueError where the file ends."""
    length = os.fstat(file.fileno()).st_size if size > LARGE else None
    data = b"" if length is not None and size > length else file.read(size)
    if len(data) < size:
        raise ValueError(
            f"the GGUF file is truncated or damaged: it ends where its header has {size} bytes more"
        )
    return data


def numbers(file: BinaryIO, code: str, count: int) -> list:
    size = count * struct.calcsize(f"<{code}")
    return [number for (number,) in struct.iter_unpack(f"<{code}", take(file, size))]


def number(file: BinaryIO, code: str) -> Any:
    return numbers(file, code, 1)[0]


def string(file: BinaryIO) -> str:
    return str(take(file, number(file, "Q")), "utf-8", "replace")


def value(file: BinaryIO, kind: int, depth: int = 0) -> Any:
    """Of the metadata: a number, a string or an array."""
    if kind == STRING:
        return string(file)
    if kind == ARRAY and depth < MAX_DEPTH:
        inner, count = number(file, "I"), number(file, "Q")
        if inner not in (STRING, ARRAY):
            return numbers(file, code_of(inner), count)
        return [value(file, inner, depth + 1) for _ in range(count)]
    return number(file, code_of(kind))


def code_of(kind: int) -> str:
    code = SCALARS[kind] if kind < len(SCALARS) else None
    if code is None:
        raise ValueError(f"the GGUF file is damaged: a value is of type {kind}")
    return code


def read_gguf(path: Path) -> GgufFile:
    """Metadata and places of tensors; their numbers stay in the file.

    Raises:
      ValueError: of one line, if it is no GGUF file, or ends within its header.
    """
    metadata, tensors = {}, {}
    with open(path, "rb") as file:
        if (magic := file.read(4)) != b"GGUF":
            raise ValueError(f"it is no GGUF file: it begins with {magic!r}, not with b'GGUF'")
        if (version := number(file, "I")) not in VERSIONS:
            raise ValueError(f"the GGUF file is of version {version}: it must be one of {VERSIONS}")
        num_tensors, num_values = numbers(file, "Q", 2)
        for _ in range(num_values):
            name = string(file)
            metadata[name] = value(file, number(file, "I"))
        for _ in range(num_tensors):
            name, rank = string(file), number(file, "I")
            if rank > MAX_RANK:
                raise ValueError(f"the GGUF file is damaged: tensor {name} has {rank} dimensions")
            shape = tuple(numbers(file, "Q", rank)[::-1])
            tensors[name] = GgufTensor(shape, number(file, "I"), number(file, "Q"))
        end = file.tell()
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError(f"general.alignment is {alignment!r}: it must be at least 1")
    start = -(-end // alignment) * alignment
    places = {name: tensor._replace(start=start + tensor.start) for name, tensor in tensors.items()}
    return GgufFile(metadata, places, np.asarray(np.memmap(path, np.uint8, mode="r")))
