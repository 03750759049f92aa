"""config.json of Hugging Face folders: read and written, as values."""

import math
from typing import Any

from rljax.nets.rotary import KINDS, RopeScaling
from rljax.nets.transformer import TransformerConfig

FAMILIES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
MAX_POSITIONS = 32_768  # written where a model does not say for how many it was trained


def config_from_json(values: Any) -> TransformerConfig:
    """The config of a model; what is absent or null is as transformers has it.

    Raises:
      ValueError: of one line, for what is not known or not of its type.

    >>> sizes = {"vocab_size": 11, "hidden_size": 8, "intermediate_size": 16}
    >>> numbers = {"num_hidden_layers": 1, "num_attention_heads": 2}
    >>> config_from_json({"model_type": "llama", **sizes, **numbers}).head_size
    4
    """
    if not isinstance(values, dict):
        raise ValueError(f"it holds a {type(values).__name__}: it must be an object")
    family = family_of(values)
    qwen = family != "llama"
    refuse_variants(values, qwen)
    layers, width = (whole(values, name) for name in ("num_hidden_layers", "hidden_size"))
    heads = whole(values, "num_attention_heads")
    head_size = 128
    if family != "qwen3" and values.get("head_dim") is None:
        if heads < 1 or width % heads:
            raise ValueError(
                f"hidden_size is {width}: without head_dim it must be a multiple of "
                f"num_attention_heads, {heads}"
            )
        head_size = width // heads
    bias = flag(values, "attention_bias") if family != "qwen2" else False
    max_positions = whole(values, "max_position_embeddings", 32_768 if qwen else 2048)
    theta, scaling = rope_of(values, max_positions)
    values = {"num_key_value_heads": 32 if qwen else heads, **values}
    return TransformerConfig(
        vocab_size=whole(values, "vocab_size"),
        num_layers=layers,
        model_size=width,
        num_heads=heads,
        num_kv_heads=whole(values, "num_key_value_heads", heads),
        head_size=whole(values, "head_dim", head_size),
        mlp_size=whole(values, "intermediate_size"),
        rope_theta=theta,
        rope_scaling=scaling,
        norm_eps=real(values, "rms_norm_eps", 1e-6),
        tie_embeddings=flag(values, "tie_word_embeddings"),
        qkv_bias=bias or family == "qwen2",
        out_bias=bias,
        mlp_bias=flag(values, "mlp_bias") if family == "llama" else False,
        qk_norm=family == "qwen3",
        max_positions=max_positions,
    )


def family_of(values: dict) -> str:
    """The key of FAMILIES."""
    names = values.get("architectures") or [FAMILIES.get(values.get("model_type", ""))]
    for family, architecture in FAMILIES.items():
        if names == [architecture]:
            return family
    given = values.get("architectures") or f"model_type {values.get('model_type')!r}"
    raise ValueError(f"architectures is {given}: it must be one of {', '.join(FAMILIES.values())}")


def refuse_variants(values: dict, qwen: bool) -> None:
    """Raises a ValueError for what would change the outputs and is not implemented."""
    if (act := values.get("hidden_act") or "silu") != "silu":
        raise ValueError(f"hidden_act is {act!r}: it must be 'silu'")
    if quantized := values.get("quantization_config"):
        method = quantized.get("quant_method") if isinstance(quantized, dict) else quantized
        raise ValueError(f"quantization_config is {method!r}: weights must be plain, or GGUF")
    kinds = field(values, "layer_types", (list,), "a list", [])
    windows = qwen and flag(values, "use_sliding_window") and values.get("sliding_window", 4096)
    if (
        not kinds
        and windows
        and whole(values, "max_window_layers", 28) < whole(values, "num_hidden_layers")
    ):
        kinds = ["sliding_attention"]
    if other := [kind for kind in kinds if kind != "full_attention"]:
        raise ValueError(f"layer_types has {other[0]!r}: all must be 'full_attention'")


def rope_of(values: dict, max_positions: int) -> tuple[float, RopeScaling | None]:
    """Base and scaling of the rotary positions, from `rope_parameters` or the older fields."""
    given = values.get("rope_scaling") or values.get("rope_parameters") or {}
    if not isinstance(given, dict) or any(isinstance(value, dict) for value in given.values()):
        raise ValueError("rope_parameters differ by layer, or are no object: one for all is needed")
    given = {
        "rope_theta": values.get("rope_theta"),
        "partial_rotary_factor": values.get("partial_rotary_factor"),
    } | {name: value for name, value in given.items() if value is not None}
    theta = real(given, "rope_theta", 10_000.0)
    if theta <= 1:
        raise ValueError(f"rope_theta is {theta}: it must be above 1")
    if (part := real(given, "partial_rotary_factor", 1.0)) != 1:
        raise ValueError(f"partial_rotary_factor is {part}: it must be 1")
    kind = given.get("rope_type", given.get("type", "default"))
    if kind == "default":
        return theta, None
    if kind not in KINDS:
        raise ValueError(f"rope_type is {kind!r}: it must be one of default, {', '.join(KINDS)}")
    factor = real(given, "factor")
    if kind == "linear":
        return theta, RopeScaling(kind, factor)
    original = values.get("original_max_position_embeddings")
    given = given if original is None else {**given, "original_max_position_embeddings": original}
    length = whole(given, "original_max_position_embeddings", max_positions)
    if kind == "llama3":
        low, high = real(given, "low_freq_factor"), real(given, "high_freq_factor")
        if low >= high:
            raise ValueError(f"low_freq_factor is {low}: it must be below high_freq_factor, {high}")
        return theta, RopeScaling(kind, factor, length, low, high)
    attention = None
    if given.get("attention_factor") is not None:
        attention = real(given, "attention_factor")
    elif given.get("mscale") and given.get("mscale_all_dim"):
        growth = 0.1 * math.log(max(factor, 1.0))
        attention = (growth * real(given, "mscale") + 1) / (
            growth * real(given, "mscale_all_dim") + 1
        )
    return theta, RopeScaling(
        kind,
        factor,
        length,
        beta_fast=real(given, "beta_fast", 32.0),
        beta_slow=real(given, "beta_slow", 1.0),
        attention_factor=attention,
        truncate=flag(given, "truncate", True),
    )


def config_to_json(config: TransformerConfig) -> dict[str, Any]:
    """The fields of config.json; transformers of either generation reads them.

    Raises:
      ValueError: no architecture of transformers has this combination of variants.
    """
    c = config
    if c.qk_norm:
        family, fits = "qwen3", c.qkv_bias == c.out_bias and not c.mlp_bias
    elif c.qkv_bias and not c.out_bias:
        family, fits = "qwen2", not c.mlp_bias
    else:  # transformers wants whole heads here, also where head_dim is given
        family, fits = "llama", c.qkv_bias == c.out_bias and c.model_size % c.num_heads == 0
    if not fits:
        names = ("model_size", "num_heads", "qkv_bias", "out_bias", "mlp_bias", "qk_norm")
        given = ", ".join(f"{name} {getattr(c, name)}" for name in names)
        raise ValueError(f"no architecture of transformers has {given}")
    values = {
        "architectures": [FAMILIES[family]],
        "model_type": family,
        "vocab_size": c.vocab_size,
        "num_hidden_layers": c.num_layers,
        "hidden_size": c.model_size,
        "num_attention_heads": c.num_heads,
        "num_key_value_heads": c.num_kv_heads,
        "head_dim": c.head_size,
        "intermediate_size": c.mlp_size,
        "hidden_act": "silu",
        "max_position_embeddings": c.max_positions or trained_positions(c.rope_scaling),
        "rms_norm_eps": c.norm_eps,
        "rope_theta": c.rope_theta,
        "rope_scaling": scaling_to_json(c.rope_scaling),
        "tie_word_embeddings": c.tie_embeddings,
        "torch_dtype": c.param_dtype,
    }
    if family != "qwen2":
        values["attention_bias"] = c.qkv_bias
    if family == "llama":
        values["mlp_bias"] = c.mlp_bias
    else:
        values |= {"use_sliding_window": False, "sliding_window": None}
    return values


def trained_positions(scaling: RopeScaling | None) -> int:
    """A guess for models that do not say."""
    if scaling is None or not scaling.original_max_positions:
        return MAX_POSITIONS
    return int(scaling.factor * scaling.original_max_positions)


def scaling_to_json(scaling: RopeScaling | None) -> dict[str, Any] | None:
    if scaling is None:
        return None
    values: dict[str, Any] = {"rope_type": scaling.kind, "factor": float(scaling.factor)}
    if scaling.kind != "linear":
        values["original_max_position_embeddings"] = scaling.original_max_positions
    if scaling.kind == "llama3":
        values["low_freq_factor"] = float(scaling.low_freq_factor)
        values["high_freq_factor"] = float(scaling.high_freq_factor)
    if scaling.kind == "yarn":
        values["beta_fast"], values["beta_slow"] = scaling.beta_fast, scaling.beta_slow
        values["truncate"] = scaling.truncate
        if scaling.attention_factor is not None:
            values["attention_factor"] = scaling.attention_factor
    return values


def field(values: dict, name: str, kinds: tuple, words: str, default: Any) -> Any:
    value = default if values.get(name) is None else values[name]
    if value is None:
        raise ValueError(f"it has no {name}")
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise ValueError(f"{name} is {value!r}: it must be {words}")
    return value


def whole(values: dict, name: str, default: int | None = None) -> int:
    return field(values, name, (int,), "a whole number", default)


def flag(values: dict, name: str, default: bool = False) -> bool:
    return field(values, name, (bool,), "true or false", default)


def real(values: dict, name: str, default: float | None = None) -> float:
    value = float(field(values, name, (int, float), "a number", default))
    if not math.isfinite(value):
        raise ValueError(f"{name} is {value}: it must be finite")
    return value
