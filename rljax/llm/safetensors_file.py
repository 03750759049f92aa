"""Folders with safetensors: opened without reading, written one shard at a time."""

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rljax.llm.huggingface import config_from_json
from rljax.llm.layout import Checkpoint, pieces
from rljax.llm.packages import need
from rljax.llm.tokenizer import from_folder
from rljax.nets.transformer import TransformerConfig
from rljax.types import Params

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
DTYPES = ("F64", "F32", "F16", "BF16")


def open_folder(folder: Path) -> Checkpoint:
    """A Hugging Face folder; its tensors are read when they are asked for.

    Raises:
      ValueError: of one line that names the file, if one is missing, damaged or not known.
    """
    if not (folder / "config.json").is_file():
        raise ValueError("it holds no config.json: a model's folder or a .gguf file is needed")
    try:
        config = config_from_json(read_json(folder / "config.json"))
    except ValueError as error:
        raise ValueError(f"config.json: {error}") from None
    tensors = open_tensors(folder)
    shapes = {name: tuple(tensor.get_shape()) for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        if (dtype := tensor.get_dtype()) not in DTYPES:
            raise ValueError(f"tensor {name} is {dtype}: it must be one of {', '.join(DTYPES)}")
        if name.endswith(".rotary_emb.inv_freq"):  # old files have it; it follows from the config
            del shapes[name]

    def read(name: str, rows: slice) -> np.ndarray:
        start, stop, _ = rows.indices(tensors[name].get_shape()[0])  # it does not clip
        return tensors[name][start:stop]

    if config.tie_embeddings and HEAD in shapes and shapes.get(EMBEDDING) == shapes[HEAD]:
        num_rows = shapes.pop(HEAD)[0]
        if not equal(read, num_rows):
            raise ValueError(f"{HEAD} differs from {EMBEDDING}, to which config.json ties it")

    def tokenizer() -> Any:
        return from_folder(folder) if (folder / "tokenizer.json").is_file() else None

    return Checkpoint(config, shapes, lambda name: name, read, tokenizer)


def equal(read: Any, num_rows: int) -> bool:
    """Whether the unembedding is the embedding, bit for bit."""
    blocks = (slice(start, start + 4096) for start in range(0, num_rows, 4096))
    return all(read(HEAD, rows).tobytes() == read(EMBEDDING, rows).tobytes() for rows in blocks)


def open_tensors(folder: Path) -> dict[str, Any]:
    """Handles of the tensors by name, from one file or from the shards of an index."""
    if (folder / WEIGHTS).is_file():
        return open_shard(folder / WEIGHTS)
    if not (folder / INDEX).is_file():
        raise ValueError(f"it holds neither {WEIGHTS} nor {INDEX}")
    try:
        index = read_json(folder / INDEX)
    except ValueError as error:
        raise ValueError(f"{INDEX}: {error}") from None
    places = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(places, dict) or not all(isinstance(n, str) for n in places.values()):
        raise ValueError(f"{INDEX} holds no weight_map from tensors to files")
    shards = {}
    for shard in sorted(set(places.values())):
        if Path(shard).name != shard or not (folder / shard).is_file():
            raise ValueError(f"{INDEX} names {shard}, which is not there")
        shards[shard] = open_shard(folder / shard)
    for name, shard in places.items():
        if name not in shards[shard]:
            raise ValueError(f"{shard} holds no tensor {name}, which {INDEX} says it does")
    return {name: tensor for tensors in shards.values() for name, tensor in tensors.items()}


def open_shard(path: Path) -> dict[str, Any]:
    """Handles of the tensors of one file; the length of the file is checked."""
    safetensors = need("safetensors", "a Hugging Face folder")
    try:
        file = safetensors.safe_open(path, framework="numpy")
        return {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{path.name} is truncated or damaged: {reason}") from None


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"it is no JSON: {str(error).splitlines()[0]}") from None


def write_tensors(
    folder: Path, config: TransformerConfig, params: Params, max_shard_bytes: float | int
) -> None:
    """Writes `params` as one file, or as shards with an index; one shard at a time is in memory."""
    save_file = need("safetensors.numpy", "save_language_model").save_file
    leaves = {path: leaf_of(params, path) for path in pieces(config)}
    sizes = {
        piece.name: math.prod(piece.shape) * leaves[path].dtype.itemsize
        for path, parts in pieces(config).items()
        for piece in parts
    }
    shards = split(sizes, max_shard_bytes)
    names = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    names = [WEIGHTS] if len(shards) == 1 else names
    tensors = tensors_of(config, leaves)
    for name, shard in zip(names, shards):
        # In the order of `sizes`, in which the shards were filled.
        content = dict(next(tensors) for _ in shard)
        save_file(content, folder / name, metadata={"format": "pt"})
    if len(shards) > 1:
        places = {tensor: name for name, shard in zip(names, shards) for tensor in shard}
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": places}
        write_json(folder / INDEX, index)


def tensors_of(
    config: TransformerConfig, leaves: dict[str, Any]
) -> Iterator[tuple[str, np.ndarray]]:
    """Names and values of the tensors; each parameter comes to the host once."""
    for path, parts in pieces(config).items():
        leaf = np.asarray(leaves[path])
        for piece in parts:
            yield piece.name, np.ascontiguousarray(leaf[piece.place]).reshape(piece.shape)


def leaf_of(params: Params, path: str) -> Any:
    value: Any = params
    for part in path.split("/"):
        value = value[part]
    return value


def split(sizes: dict[str, int], limit: float | int) -> list[list[str]]:
    """Tensors in their order, in groups of at most `limit` bytes (or of one tensor).

    >>> split({"a": 3, "b": 4, "c": 9, "d": 1}, 8)
    [['a', 'b'], ['c'], ['d']]
    """
    groups: list[list[str]] = []
    filled = 0
    for name, size in sizes.items():
        if not groups or filled + size > limit:
            groups.append([])
            filled = 0
        groups[-1].append(name)
        filled += size
    return groups


def write_json(path: Path, values: Any) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def sync(folder: Path) -> None:
    """Makes what was written survive a power cut."""
    for path in [*folder.iterdir(), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
