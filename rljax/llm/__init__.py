"""Language models: files, tokenizers, and the sampler of grouped completions."""
