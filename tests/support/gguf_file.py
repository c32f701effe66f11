"""A small GGUF file: a llama with random Q8_0 weights and a byte-level tokenizer."""

from pathlib import Path

import gguf
import numpy as np

from triolet.model_source.tiny_random import byte_level_tokenizer

HIDDEN, FFN, LAYERS, HEADS, KV_HEADS, CONTEXT = 64, 96, 2, 4, 2, 256
EPSILON = 1e-5


def write_gguf(path: Path, architecture: str = "llama") -> None:
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, architecture)
    tokens = [token for token, _ in sorted(_vocab().items(), key=lambda item: item[1])]
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_block_count(LAYERS)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token.startswith("<|") else 1 for token in tokens])
    writer.add_token_merges(["t h", "th e"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_eot_token_id(2)
    writer.add_chat_template("{{ messages[0].content }}")

    def add(name: str, rows: int, columns: int) -> None:
        data = rng.standard_normal((rows, columns), dtype=np.float32)
        q8_0 = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(name, gguf.quants.quantize(data, q8_0), raw_dtype=q8_0)

    add("token_embd.weight", len(tokens), HIDDEN)
    add("output.weight", len(tokens), HIDDEN)
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, dtype=np.float32))
    for layer in range(LAYERS):
        for norm in ("attn_norm", "ffn_norm"):
            weight = rng.standard_normal(HIDDEN, dtype=np.float32)
            writer.add_tensor(f"blk.{layer}.{norm}.weight", weight)
        add(f"blk.{layer}.attn_q.weight", HIDDEN, HIDDEN)
        add(f"blk.{layer}.attn_k.weight", HIDDEN // HEADS * KV_HEADS, HIDDEN)
        add(f"blk.{layer}.attn_v.weight", HIDDEN // HEADS * KV_HEADS, HIDDEN)
        add(f"blk.{layer}.attn_output.weight", HIDDEN, HIDDEN)
        add(f"blk.{layer}.ffn_gate.weight", FFN, HIDDEN)
        add(f"blk.{layer}.ffn_up.weight", FFN, HIDDEN)
        add(f"blk.{layer}.ffn_down.weight", HIDDEN, FFN)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _vocab() -> dict[str, int]:
    return byte_level_tokenizer().get_vocab()
