"""A decoder-only language model (Llama, Qwen2, Qwen3, SmolLM2), as plain functions.

Its layers are one scan over stacked parameters. What attention remembers is not decided here:
`forward` takes a function `attend`, and plain causal attention, a prefill and a cached step are the
same forward with different ones (`rljax.llm.cache` has the latter two).

Weights stand as [outputs, inputs]. g = H / KV queries share one key and value.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from rljax.nets.rotary import RopeScaling, check_scaling, frequencies, rotate, rotation
from rljax.types import Array, Key, LanguageNet, Params, PyTree

DTYPES = ("float32", "bfloat16", "float16")
FEW_ROWS = 64  # measured at 16; training has many more


class TransformerConfig(NamedTuple):
    """Sizes and variants of a model; hashable."""

    vocab_size: int  # V
    num_layers: int  # N
    model_size: int  # D
    num_heads: int  # H
    num_kv_heads: int  # KV, a divisor of H
    head_size: int  # K, even
    mlp_size: int  # F
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    norm_eps: float = 1e-5
    tie_embeddings: bool = True  # the unembedding is the embedding
    qkv_bias: bool = False  # Qwen2
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False  # Qwen3: queries and keys are normalised before they are rotated
    param_dtype: str = "float32"
    compute_dtype: str = "float32"  # of the products' inputs; they are summed in float32
    remat: bool = False  # layers are computed again for the gradient, instead of kept
    max_positions: int | None = None  # for how many it was trained; files carry it, nothing uses it


def make_transformer(config: TransformerConfig) -> LanguageNet:
    """The model as functions; `LanguageNet` says what each takes and gives.

    Raises:
      ValueError: for sizes that do not fit each other, or a dtype that is not allowed.

    >>> net = make_transformer(TransformerConfig(11, 1, 8, 2, 1, 4, 16))
    >>> net.apply(net.init(jax.random.key(0)), jnp.array([[1, 2, 3]])).shape
    (1, 3, 11)
    """
    check_config(config)
    turns, rope_factor = frequencies(config.head_size, config.rope_theta, config.rope_scaling)
    dtype = jnp.dtype(config.compute_dtype)

    def forward(
        params: Params, tokens: Array, positions: Array, attend: Callable, memory: PyTree
    ) -> tuple[Array, PyTree]:
        rotations = rotation(positions, turns, rope_factor)
        x = params["embedding"][tokens].astype(dtype)
        apply_one = partial(layer, config, rotations, attend)
        if config.remat:
            apply_one = jax.checkpoint(apply_one)
        layers = params["layers"]
        if isinstance(layers, tuple):  # unstacked: a program for each
            for i, weights in enumerate(layers):
                x, memory = apply_one(weights, i, x, memory)
        else:
            (x, memory), _ = jax.lax.scan(
                lambda carry, inputs: (apply_one(*inputs, *carry), None),
                (x, memory),
                (layers, jnp.arange(config.num_layers)),
            )
        return rms_norm(x, params["norm"], config.norm_eps), memory

    def hidden(
        params: Params, tokens: ArrayLike, *, positions: Any = None, mask: Any = None
    ) -> Array:
        tokens = jnp.asarray(tokens)
        mask = jnp.ones(tokens.shape, bool) if mask is None else jnp.asarray(mask) != 0
        if tokens.ndim != 2 or mask.shape != tokens.shape:
            raise ValueError(
                f"tokens are {tokens.shape} and mask {mask.shape}: both must be [B, L]"
            )
        positions = positions_of(mask) if positions is None else jnp.asarray(positions)
        if positions.shape != tokens.shape:
            raise ValueError(f"positions are {positions.shape}: tokens are {tokens.shape}")
        return forward(params, tokens, positions, causal_attention(mask), ())[0]

    def unembedding(params: Params) -> Array:
        return params["embedding" if config.tie_embeddings else "unembedding"].astype(dtype)

    def unembed(params: Params, x: Array) -> Array:
        return product(x, unembedding(params))

    def apply(
        params: Params, tokens: ArrayLike, *, positions: Any = None, mask: Any = None
    ) -> Array:
        return unembed(params, hidden(params, tokens, positions=positions, mask=mask))

    return LanguageNet(partial(init, config), apply, hidden, unembed, unembedding, forward, config)


def init(config: TransformerConfig, key: Key) -> Params:
    """Normal weights of deviation 1/√inputs, those that write to the residual stream less."""
    c = config
    groups = c.num_heads // c.num_kv_heads
    keys = iter(jax.random.split(key, 7))
    num = c.num_layers
    residual = (2 * num) ** -0.5

    def normal(*shape: int, deviation: float) -> Array:
        return (deviation * jax.random.normal(next(keys), shape)).astype(c.param_dtype)

    def constant(value: float, *shape: int) -> Array:
        return jnp.full(shape, value, c.param_dtype)

    d = c.model_size**-0.5
    layers = {
        "attention_norm": constant(1.0, num, c.model_size),
        "qkv": normal(num, c.num_kv_heads, groups + 2, c.head_size, c.model_size, deviation=d),
        "out": normal(
            *(num, c.model_size, c.num_kv_heads, groups, c.head_size),
            deviation=residual * (c.num_heads * c.head_size) ** -0.5,
        ),
        "mlp_norm": constant(1.0, num, c.model_size),
        "gate": normal(num, c.mlp_size, c.model_size, deviation=d),
        "up": normal(num, c.mlp_size, c.model_size, deviation=d),
        "down": normal(num, c.model_size, c.mlp_size, deviation=residual * c.mlp_size**-0.5),
    }
    if c.qkv_bias:
        layers["qkv_bias"] = constant(0.0, num, c.num_kv_heads, groups + 2, c.head_size)
    if c.out_bias:
        layers["out_bias"] = constant(0.0, num, c.model_size)
    if c.mlp_bias:
        layers["gate_bias"] = constant(0.0, num, c.mlp_size)
        layers["up_bias"] = constant(0.0, num, c.mlp_size)
        layers["down_bias"] = constant(0.0, num, c.model_size)
    if c.qk_norm:
        layers["query_norm"] = constant(1.0, num, c.head_size)
        layers["key_norm"] = constant(1.0, num, c.head_size)
    params = {
        "embedding": normal(c.vocab_size, c.model_size, deviation=0.02),
        "layers": layers,
        "norm": constant(1.0, c.model_size),
    }
    if not c.tie_embeddings:
        params["unembedding"] = normal(c.vocab_size, c.model_size, deviation=d)
    return params


def layer(
    config: TransformerConfig,
    rotations: tuple[Array, Array],
    attend: Callable,
    weights: Params,
    number: Any,
    x: Array,
    memory: PyTree,
) -> tuple[Array, PyTree]:
    """Attention and SwiGLU, each added to x [B, T, D]."""
    dtype, eps = x.dtype, config.norm_eps

    def linear(x: Array, name: str, axes: int = 1) -> Array:
        y = product(x, weights[name].astype(dtype), axes)
        if f"{name}_bias" in weights:
            bias = weights[f"{name}_bias"].astype(jnp.float32)
            y += bias[(None,) * (y.ndim - bias.ndim)]
        return y.astype(dtype)

    heads = linear(rms_norm(x, weights["attention_norm"], eps), "qkv")  # [B, T, KV, g + 2, K]
    query, key, value = heads[..., :-2, :], heads[..., -2, :], heads[..., -1, :]
    if config.qk_norm:
        query = rms_norm(query, weights["query_norm"], eps)
        key = rms_norm(key, weights["key_norm"], eps)
    attended, memory = attend(
        rotate(query, *rotations), rotate(key, *rotations), value, memory, number
    )
    x += linear(attended, "out", axes=3)
    normed = rms_norm(x, weights["mlp_norm"], eps)
    x += linear(jax.nn.silu(linear(normed, "gate")) * linear(normed, "up"), "down")
    return x, memory


def causal_attention(mask: Array) -> Callable:
    """`attend` for whole sequences with their real tokens in mask [B, L]; remembers nothing."""
    length = mask.shape[1]
    visible = jnp.tril(jnp.ones((length, length), bool))[None] & mask[:, None, :]

    def attend(query: Array, key: Array, value: Array, memory: PyTree, layer: Any):
        del layer
        flat = query.reshape(*query.shape[:2], -1, query.shape[-1])  # [B, L, H, K]
        attended = jax.nn.dot_product_attention(flat, key, value, mask=visible[:, None])
        return attended.reshape(query.shape), memory

    return attend


def positions_of(mask: Array) -> Array:
    """Positions [B, L] int32 of real tokens, counted in each row; 0 before the first.

    >>> positions_of(jnp.array([[False, True, True]])).tolist()
    [[0, 0, 1]]
    """
    return jnp.maximum(jnp.cumsum(mask.astype(jnp.int32), axis=1) - 1, 0)


def unstack(params: Params) -> Params:
    """The same parameters with a tuple of layers: `forward` then unrolls its scan.

    On a CPU the thin products of a decoding step are faster so; compiling takes longer with depth.
    """
    layers = params["layers"]
    if isinstance(layers, tuple):
        return params
    number = layers["attention_norm"].shape[0]
    split = tuple(jax.tree.map(lambda x, i=i: x[i], layers) for i in range(number))
    return {**params, "layers": split}


def rms_norm(x: Array, scale: Array, eps: float) -> Array:
    """x / √(mean x² + eps) · scale over the last axis, in float32.

    Zhang and Sennrich (2019), "Root Mean Square Layer Normalization", equation 4.
    """
    wide = x.astype(jnp.float32)
    wide *= jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return (wide * scale.astype(jnp.float32)[(None,) * (x.ndim - 1)]).astype(x.dtype)


def product(x: Array, weights: Array, axes: int = 1) -> Array:
    """x [*S, *I] times weights [*O, *I] over their last `axes` axes, [*S, *O] in float32.

    As a product of two matrices: of more axes XLA's CPU compiler would first transpose the weights.
    Few rows and weights with more inputs than outputs multiply there 1.6 times faster from the
    other side.
    """
    inputs = weights.shape[-axes:]
    rows, columns = (y.reshape(-1, math.prod(inputs)) for y in (x, weights))
    contract = (((1,), (1,)), ((), ()))
    if len(rows) <= FEW_ROWS and columns.shape[1] > columns.shape[0]:
        y = jax.lax.dot_general(columns, rows, contract, preferred_element_type=jnp.float32).T
    else:
        y = jax.lax.dot_general(rows, columns, contract, preferred_element_type=jnp.float32)
    return y.reshape(*x.shape[:-axes], *weights.shape[:-axes])


def check_config(config: TransformerConfig) -> None:
    """Raises a ValueError of one line for sizes that do not fit."""
    for name in ("vocab_size", "num_layers", "model_size", "num_heads", "num_kv_heads", "mlp_size"):
        if (value := getattr(config, name)) < 1:
            raise ValueError(f"{name} is {value}: it must be at least 1")
    if config.num_heads % config.num_kv_heads:
        raise ValueError(
            f"num_heads is {config.num_heads}: it must be a multiple of num_kv_heads, "
            f"{config.num_kv_heads}"
        )
    if config.head_size < 2 or config.head_size % 2:
        raise ValueError(f"head_size is {config.head_size}: it must be even and at least 2")
    for name in ("param_dtype", "compute_dtype"):
        if (value := getattr(config, name)) not in DTYPES:
            raise ValueError(f"{name} is {value!r}: it must be one of {', '.join(DTYPES)}")
    check_scaling(config.rope_scaling)
