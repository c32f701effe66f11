"""The tokenizer.json of a small byte-level BPE: every byte, a few merges, EOS is id 0."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

EOS = 0


def byte_level_tokenizer() -> Tokenizer:
    """261 tokens: <eos>, 256 bytes, and "tr", "true", "ab" and the parts they need."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "r"), ("u", "e"), ("tr", "ue"), ("a", "b")]
    tokens = ["<eos>", *alphabet, *(left + right for left, right in merges)]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True)])
    return tokenizer
