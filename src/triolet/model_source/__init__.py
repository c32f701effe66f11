"""Where a model comes from and what is known of it before any tensor is loaded; never torch.

In: `ModelConfig`, the operator's words for a model. Out: `ModelFacts`, a directory with
config.json, tokenizer.json and safetensors, described by its small files.

`resolve` is the way in. Work that takes long or needs torch (a download, the conversion of a
GGUF file) is done by helper processes, which end when this process does.
"""
