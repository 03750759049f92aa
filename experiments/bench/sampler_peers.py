"""The sampler of transformers (PyTorch), driven by `sampler.py` through a pipe.

python -m experiments.bench.sampler_peers transformers DIR_OR_GGUF [FIELD=VALUE ...]

prints "ready" and answers each line on stdin with the generated tokens per second of one round. A
round generates for `num_prompts` prompts of `prompt_length` tokens `group_size` completions of
`new_tokens` tokens each, in float32, drawn at temperature 1 from the whole vocabulary; nothing
stops before.
"""

import os
import sys
import time
import warnings
from pathlib import Path
from typing import NamedTuple


class Task(NamedTuple):
    """What a round does."""

    num_prompts: int = 2
    prompt_length: int = 46
    group_size: int = 8
    new_tokens: int = 64

    @property
    def num_tokens(self) -> int:
        return self.num_prompts * self.group_size * self.new_tokens


def main(peer: str, model: str, *fields: str) -> None:
    warnings.filterwarnings("ignore")
    peers = {"transformers": transformers_round}
    task = Task(**{name: int(value) for name, value in (field.split("=") for field in fields)})
    round = peers[peer](Path(model), task)
    round()
    print("ready", flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        round()
        print(task.num_tokens / (time.perf_counter() - start), flush=True)


def transformers_round(path: Path, task: Task):
    """All as by default: keys and values are cached, attention is the fused one."""
    import torch  # pyright: ignore[reportMissingImports]
    from transformers import AutoModelForCausalLM  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(os.cpu_count() or 1)
    folder, file = (path.parent, path.name) if path.is_file() else (path, None)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    generator = torch.Generator().manual_seed(0)
    size = (task.num_prompts, task.prompt_length)
    prompts = torch.randint(model.config.vocab_size, size, generator=generator)

    def round() -> None:
        tokens = model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            num_return_sequences=task.group_size,
            max_new_tokens=task.new_tokens,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            pad_token_id=0,
        )
        rows, length = task.num_prompts * task.group_size, task.prompt_length + task.new_tokens
        if tokens.shape != (rows, length):
            raise RuntimeError(f"{(rows, length)} tokens were asked for, {tokens.shape} came")

    return round


if __name__ == "__main__":
    main(*sys.argv[1:])
