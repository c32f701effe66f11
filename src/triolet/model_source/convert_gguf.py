"""`python -m triolet.model_source.convert_gguf`: GGUF file -> Hugging Face directory.

Runs in a process of its own (see `helper`): it is the only part of this room that loads torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triolet.errors import ConfigError
from triolet.model_source.helper import Report, helper_main

if TYPE_CHECKING:
    from transformers import PreTrainedModel

EXTRA_END_TOKENS = ("tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")


def convert(request: Mapping[str, Any], report: Report) -> Mapping[str, Any]:
    """Convert `source`, a GGUF file, to bf16 safetensors in the directory `target`.

    Raises:
        ConfigError: transformers cannot read the file.
    """
    source, target = Path(request["source"]), Path(request["target"])
    report("loading torch")
    import torch
    import transformers
    from safetensors import SafetensorError

    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    torch.set_num_threads(1)  # unpacking is numpy's; torch only copies
    try:
        report("reading the tokenizer")
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            source.parent, gguf_file=source.name, local_files_only=True
        )
        report("reading the weights")
        _report_unpacking(report)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            source.parent,
            gguf_file=source.name,
            local_files_only=True,
            dtype=torch.bfloat16,
            quantization_config=transformers.GgufConfig(dequantize=True),
        )
    except Exception as error:  # whatever a foreign reader makes of a foreign file
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise ConfigError(
            f"cannot convert {source.name}, it is broken or of an unknown kind ({reason})",
            param="model",
        ) from error
    report("writing safetensors")
    _complete_config(model, source)
    model.generation_config.update(**request["generation"])  # type: ignore[no-untyped-call]
    try:
        model.save_pretrained(target)
        tokenizer.save_pretrained(target)
    except (OSError, SafetensorError) as error:
        raise ConfigError(
            f"cannot write {target}: {error}; set TRIOLET_CACHE to a directory with room",
            param="model",
        ) from error
    for path in target.iterdir():
        path.chmod(0o644)  # safetensors writes 0600: a shared cache could not be read
    return {"parameters": model.num_parameters()}


def _report_unpacking(report: Report) -> None:
    """Take the place of the bar that transformers draws while it unpacks tensor by tensor."""
    from transformers import modeling_gguf_pytorch_utils

    def bar(tensors: Sequence[object], **_: object) -> Iterator[object]:
        for done, tensor in enumerate(tensors):
            report(f"unpacking the weights {100 * done // len(tensors)}%")
            yield tensor

    modeling_gguf_pytorch_utils.__dict__["tqdm"] = bar


def _complete_config(model: PreTrainedModel, source: Path) -> None:
    """Fill in what a GGUF file does not say and undo what its float32 numbers lost."""
    config = model.config
    config.architectures = [type(model).__name__]
    if (epsilon := getattr(config, "rms_norm_eps", None)) is not None:
        config.rms_norm_eps = float(f"{epsilon:.6g}")  # 9.99999974e-06 was 1e-05
    ends = [config.eos_token_id, *_extra_end_tokens(source)]
    unique = list(dict.fromkeys(i for i in ends if i is not None))
    model.generation_config.eos_token_id = unique[0] if len(unique) == 1 else unique or None


def _extra_end_tokens(source: Path) -> list[int]:
    """End-of-turn and end-of-message ids, which chat models write instead of EOS."""
    from gguf import GGUFReader

    fields = GGUFReader(source).fields
    return [int(fields[key].contents()) for key in EXTRA_END_TOKENS if key in fields]


if __name__ == "__main__":
    helper_main(convert)
