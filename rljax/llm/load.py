"""Language models from files and to files."""

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from rljax.llm.gguf_file import open_gguf
from rljax.llm.huggingface import config_to_json
from rljax.llm.layout import check_tensors, read_params, shapes_of
from rljax.llm.safetensors_file import open_folder, sync, write_json, write_tensors
from rljax.llm.tokenizer import Tokenizer, save_tokenizer
from rljax.nets.transformer import DTYPES, TransformerConfig, make_transformer
from rljax.sharding import param_sharding
from rljax.types import Key, LanguageNet, Params

# A folder that holds anything else is not replaced.
OURS = {"config.json", "generation_config.json", "model.safetensors.index.json"}
OURS |= {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"}
OURS |= {"vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json"}
OURS |= {"additional_chat_templates"}


class LanguageModel(NamedTuple):
    """A model with its weights and its tokenizer."""

    config: TransformerConfig
    net: LanguageNet
    params: Params
    tokenizer: Tokenizer | None


def load_language_model(
    path: Any, *, dtype: Any = jnp.float32, sharding: Any = None, compute_dtype: Any = None
) -> LanguageModel:
    """A model of the Llama, Qwen2 or Qwen3 family (SmolLM2 is a Llama) from a folder or a file.

    Parameters are read one after another, each straight to its devices: the host holds one of them
    at a time. Where the device is the CPU, it is read into the memory that the parameter keeps.

    Args:
      path: a Hugging Face folder (config.json, safetensors in one file or in shards,
        tokenizer.json) or a .gguf file.
      dtype: of the parameters: float32, bfloat16 or float16.
      sharding: None for the default device, a jax.sharding.Sharding for all parameters, a function
        (path such as "layers/qkv", shape) -> Sharding or None, as `rljax.sharding.param_sharding`
        gives, or a Mesh: what that gives for it.
      compute_dtype: of the products' inputs; `dtype` unless given.

    Returns:
      A LanguageModel; its tokenizer is None where there is none in the folder or the file.

    Raises:
      FileNotFoundError: there is nothing at `path`.
      ValueError: one line, before anything is compiled: an architecture or a variant that is not
        known, a damaged file, a tensor that is missing, too many or of a wrong shape.
      ImportError: a package of the extra rljax[llm] is missing.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist: it must be a model's folder or .gguf file")
    if isinstance(sharding, Mesh):
        sharding = param_sharding(sharding)
    param_dtype = dtype_name("dtype", dtype)
    compute = param_dtype if compute_dtype is None else dtype_name("compute_dtype", compute_dtype)
    try:
        checkpoint = open_folder(path) if path.is_dir() else open_gguf(path)
        config = checkpoint.config._replace(param_dtype=param_dtype, compute_dtype=compute)
        net = make_transformer(config)
        check_tensors(checkpoint)
        tokenizer = checkpoint.tokenizer()
    except ValueError as error:
        message = str(error)
        raise ValueError(message if str(path) in message else f"{path}: {message}") from error
    return LanguageModel(config, net, read_params(checkpoint, net, sharding), tokenizer)


def model_from_config(
    config: TransformerConfig, key: Key, tokenizer: Tokenizer | None = None
) -> LanguageModel:
    """A model with random weights, to be trained from scratch.

    >>> tiny = TransformerConfig(11, 1, 8, 2, 1, 4, 16)
    >>> model_from_config(tiny, jax.random.key(0)).params["embedding"].shape
    (11, 8)
    """
    net = make_transformer(config)
    return LanguageModel(config, net, net.init(key), tokenizer)


def save_language_model(
    path: Any, model: LanguageModel, *, max_shard_bytes: float | int = 5e9
) -> None:
    """Writes a folder that `load_language_model` and transformers read.

    It is written beside `path` and then renamed: whenever this is killed, there is no part of a
    model at `path`. A model that is there already is replaced; between two renames there is none,
    and the old one stands beside as `.NAME.old`. One process at a time may write to a path.

    Args:
      path: the folder: new, empty, or one with nothing in it but a model's files.
      model: its parameters are written in their own dtype.
      max_shard_bytes: a larger model is written as several files. The host holds one of them and
        one parameter at a time.

    Raises:
      ValueError: one line; a parameter does not fit the config, no architecture of transformers
        has such a config, or `path` holds something else than a model. Nothing was written.
    """
    path = Path(path).resolve()
    if not max_shard_bytes > 0:
        raise ValueError(f"max_shard_bytes is {max_shard_bytes}: it must be above 0")
    check_replaceable(path)
    check_params(model)
    values = config_to_json(model.config) | special_tokens(model)
    values["torch_dtype"] = str(model.params["embedding"].dtype)
    path.parent.mkdir(parents=True, exist_ok=True)
    new, old = path.with_name(f".{path.name}.tmp"), path.with_name(f".{path.name}.old")
    for left_over in (new, old):
        shutil.rmtree(left_over, ignore_errors=True)
    new.mkdir()
    try:
        write_tensors(new, model.config, model.params, max_shard_bytes)
        if model.tokenizer is not None:
            save_tokenizer(new, model.tokenizer)
        write_json(new / "config.json", values)
        sync(new)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    if path.exists():
        path.rename(old)
    new.rename(path)
    sync(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def dtype_name(what: str, dtype: Any) -> str:
    """float32 for jnp.float32 and the like."""
    try:
        name = jnp.dtype(dtype).name
    except TypeError:
        name = str(dtype)
    if name not in DTYPES:
        raise ValueError(f"{what} is {name}: it must be one of {', '.join(DTYPES)}")
    return name


def check_replaceable(path: Path) -> None:
    """Raises a ValueError if there is something at `path` that is no model's folder."""
    if not path.exists():
        return
    if not path.is_dir():
        raise ValueError(f"{path} is a file: a folder is written there")
    names = sorted(entry.name for entry in path.iterdir())
    other = [name for name in names if name not in OURS and not name.endswith(".safetensors")]
    if other or (names and "config.json" not in names):
        raise ValueError(f"{path} holds {(other or names)[0]}: only a model's folder is replaced")


def check_params(model: LanguageModel) -> None:
    """Raises a ValueError for parameters that are missing, too many or of a wrong shape."""
    given = {
        "/".join(str(getattr(key, "key", key)) for key in path): leaf.shape
        for path, leaf in jax.tree_util.tree_leaves_with_path(model.params)
    }
    wanted = shapes_of(model.config)
    for path in [*wanted, *given]:
        if given.get(path) != wanted.get(path):
            raise ValueError(
                f"parameter {path} is {given.get(path, 'absent')}: "
                f"it must be {wanted.get(path, 'absent')}"
            )


def special_tokens(model: LanguageModel) -> dict[str, int | None]:
    """The fields of config.json that say where a text begins and ends."""
    ids = {name: getattr(model.tokenizer, f"{name}_id", None) for name in ("bos", "eos", "pad")}
    size = model.config.vocab_size
    return {f"{name}_token_id": i if i is None or i < size else None for name, i in ids.items()}
