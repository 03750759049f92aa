"""Where the tensors of a file stand in the parameters of a model, for reading and for writing."""

import gc
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding

from rljax.nets.transformer import TransformerConfig, make_transformer
from rljax.types import LanguageNet, Params

BLOCK = 1 << 22  # numbers that are read at once where rows can be read apart
ALIGNMENT = 64  # bytes


class Piece(NamedTuple):
    """A tensor of a file as a part of one parameter."""

    name: str  # as in Hugging Face files
    place: tuple  # index into the parameter
    shape: tuple[int, ...]  # in the file; the same order of numbers as parameter[place]


class Checkpoint(NamedTuple):
    """An open file or folder: what is in it, and how to read it."""

    config: TransformerConfig
    shapes: dict[str, tuple[int, ...]]  # of the tensors, under the names of the file
    rename: Callable[[str], str]  # the name of a Piece -> that of the file
    read: Callable[[str, slice], np.ndarray]  # name in the file, rows -> those rows
    tokenizer: Callable[[], Any]  # reads it; None if there is none


def pieces(config: TransformerConfig) -> dict[str, list[Piece]]:
    """The tensors that each parameter is made of, by its path.

    >>> tiny = TransformerConfig(11, 2, 8, 2, 1, 4, 16)
    >>> [piece.shape for piece in pieces(tiny)["layers/gate"]]
    [(16, 8), (16, 8)]
    """
    c = config
    groups = c.num_heads // c.num_kv_heads
    heads, kv_heads = c.num_heads * c.head_size, c.num_kv_heads * c.head_size
    d, f = c.model_size, c.mlp_size
    queries, keys, values = np.s_[:, :groups], np.s_[:, groups], np.s_[:, groups + 1]
    table: dict[str, list[tuple[str, tuple, tuple[int, ...]]]] = {
        "attention_norm": [("input_layernorm.weight", (), (d,))],
        "qkv": [
            ("self_attn.q_proj.weight", queries, (heads, d)),
            ("self_attn.k_proj.weight", keys, (kv_heads, d)),
            ("self_attn.v_proj.weight", values, (kv_heads, d)),
        ],
        "out": [("self_attn.o_proj.weight", (), (d, heads))],
        "mlp_norm": [("post_attention_layernorm.weight", (), (d,))],
        "gate": [("mlp.gate_proj.weight", (), (f, d))],
        "up": [("mlp.up_proj.weight", (), (f, d))],
        "down": [("mlp.down_proj.weight", (), (d, f))],
    }
    if c.qkv_bias:
        table["qkv_bias"] = [
            ("self_attn.q_proj.bias", queries, (heads,)),
            ("self_attn.k_proj.bias", keys, (kv_heads,)),
            ("self_attn.v_proj.bias", values, (kv_heads,)),
        ]
    if c.out_bias:
        table["out_bias"] = [("self_attn.o_proj.bias", (), (d,))]
    if c.mlp_bias:
        table["gate_bias"] = [("mlp.gate_proj.bias", (), (f,))]
        table["up_bias"] = [("mlp.up_proj.bias", (), (f,))]
        table["down_bias"] = [("mlp.down_proj.bias", (), (d,))]
    if c.qk_norm:
        table["query_norm"] = [("self_attn.q_norm.weight", (), (c.head_size,))]
        table["key_norm"] = [("self_attn.k_norm.weight", (), (c.head_size,))]
    found = {"embedding": [Piece("model.embed_tokens.weight", (), (c.vocab_size, d))]}
    for parameter, rows in table.items():
        found[f"layers/{parameter}"] = [
            Piece(f"model.layers.{layer}.{name}", (layer, *place), shape)
            for layer in range(c.num_layers)
            for name, place, shape in rows
        ]
    found["norm"] = [Piece("model.norm.weight", (), (d,))]
    if not c.tie_embeddings:
        found["unembedding"] = [Piece("lm_head.weight", (), (c.vocab_size, d))]
    return found


def shapes_of(config: TransformerConfig) -> dict[str, tuple[int, ...]]:
    """The shape of each parameter of a model, by its path."""
    net = make_transformer(config)
    abstract = jax.eval_shape(lambda: net.init(jax.random.key(0)))
    return {
        "/".join(key.key for key in path): leaf.shape
        for path, leaf in jax.tree_util.tree_leaves_with_path(abstract)
    }


def check_tensors(checkpoint: Checkpoint) -> None:
    """Raises a ValueError of one line for tensors that are missing, too many or of wrong shape."""
    wanted = {
        checkpoint.rename(piece.name): piece.shape
        for parts in pieces(checkpoint.config).values()
        for piece in parts
    }
    there = checkpoint.shapes

    def others(names: list[str]) -> str:
        return f" (and {len(names) - 1} more)" if len(names) > 1 else ""

    if missing := [name for name in wanted if name not in there]:
        first = missing[0]
        raise ValueError(f"tensor {first} {wanted[first]} is missing{others(missing)}")
    if extra := [name for name in there if name not in wanted]:
        first = extra[0]
        raise ValueError(f"tensor {first} {there[first]} has no place in this model{others(extra)}")
    if wrong := [name for name in wanted if wanted[name] != there[name]]:
        first = wrong[0]
        raise ValueError(
            f"tensor {first} is {there[first]}: it must be {wanted[first]}{others(wrong)}"
        )


def read_params(checkpoint: Checkpoint, net: LanguageNet, sharding: Any) -> Params:
    """The parameters of `net` on their devices; one of them at a time is whole on the host."""
    shapes, dtype = shapes_of(net.config), jnp.dtype(net.config.param_dtype)
    params: Params = {}
    for path, parts in pieces(net.config).items():
        target: Any = params
        *parents, last = path.split("/")
        for parent in parents:
            target = target.setdefault(parent, {})
        # What is on the host gets no name, or it would live while the next one is filled; JAX too
        # lets go of it only when Python collects garbage.
        target[last] = put(filled(checkpoint, parts, shapes[path], dtype), path, sharding)
        gc.collect(0)
    return params


def filled(
    checkpoint: Checkpoint, parts: list[Piece], shape: tuple[int, ...], dtype: Any
) -> np.ndarray:
    """One parameter, from its pieces."""
    leaf = aligned(shape, dtype)
    for piece in parts:
        target, name = leaf[piece.place], checkpoint.rename(piece.name)
        # A table of embeddings is read in blocks of rows, so that no second one stands beside it.
        step = max(1, BLOCK // math.prod(piece.shape[1:]))
        if target.shape != piece.shape or len(target) <= step:
            target[...] = checkpoint.read(name, slice(None)).reshape(target.shape)
            continue
        for start in range(0, len(target), step):
            target[start : start + step] = checkpoint.read(name, slice(start, start + step))
    return leaf


def aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Memory that JAX takes as it is where the device is the CPU, instead of copying it."""
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)


def put(leaf: np.ndarray, path: str, sharding: Any) -> jax.Array:
    """`leaf` as an array on the device or devices, there before this returns."""
    if sharding is not None and not isinstance(sharding, Sharding):
        sharding = sharding(path, leaf.shape)
    if sharding is None:
        return jax.block_until_ready(jax.device_put(leaf))
    array = jax.make_array_from_callback(leaf.shape, sharding, lambda index: leaf[index])
    return jax.block_until_ready(array)
