# The compiled module (cpu/module.cpp). Addresses are ints, 0 is null; codes are in packed_weight.py.

def supported_isas() -> list[str]: ...
def packed_bytes(code: int, n: int, k: int) -> int: ...
def scale_bytes(code: int, n: int, k: int) -> int: ...
def advise_huge_pages(memory: int, num_bytes: int) -> None: ...

class Kernels:
    def __init__(self, isa: str, num_threads: int) -> None: ...
    @property
    def num_threads(self) -> int: ...
    def close(self) -> None: ...
    def pack(
        self,
        code: int,
        weight: int,
        dtype: int,
        n: int,
        k: int,
        packed: int,
        scales: int,
        sums: int,
        /,
    ) -> None: ...
    def linear(
        self,
        code: int,
        x: int,
        weight: int,
        scales: int,
        sums: int,
        bias: int,
        y: int,
        rows: int,
        n: int,
        k: int,
        dtype: int,
        float_output: bool,
        /,
    ) -> None: ...
    def embedding(
        self,
        ids: int,
        table: int,
        scales: int,
        out: int,
        rows: int,
        vocabulary: int,
        hidden: int,
        dtype: int,
        /,
    ) -> None: ...
    def rms_norm(
        self,
        x: int,
        residual: int,
        inner_weight: int,
        weight: int,
        out: int,
        rows: int,
        hidden: int,
        eps: float,
        offset: float,
        dtype: int,
        /,
    ) -> None: ...
    def gated_activation(
        self, gate_up: int, out: int, rows: int, intermediate: int, kind: int, dtype: int, /
    ) -> None: ...
    def rope_and_store(
        self,
        qkv: int,
        q_out: int,
        keys: int,
        values: int,
        positions: int,
        slots: int,
        cos: int,
        sin: int,
        q_norm: int,
        k_norm: int,
        rows: int,
        num_blocks: int,
        max_positions: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        block_size: int,
        rotary_dim: int,
        eps: float,
        offset: float,
        dtype: int,
        /,
    ) -> None: ...
    def paged_attention(
        self,
        q: int,
        out: int,
        keys: int,
        values: int,
        positions: int,
        query_starts: int,
        block_table: int,
        sinks: int,
        sequences: int,
        block_table_stride: int,
        num_blocks: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        block_size: int,
        window: int,
        scale: float,
        softcap: float,
        dtype: int,
        /,
    ) -> None: ...
    def sample(
        self,
        logits: int,
        temperature: int,
        top_k: int,
        top_p: int,
        min_p: int,
        uniform: int,
        tokens: int,
        rows: int,
        vocabulary: int,
        /,
    ) -> None: ...
    def top_logprobs(
        self,
        logits: int,
        tokens: int,
        logprobs: int,
        ranks: int,
        top_ids: int,
        top_logprobs: int,
        rows: int,
        vocabulary: int,
        k: int,
        /,
    ) -> None: ...
    def empty_operations(self, tiles: int, times: int, /) -> None: ...
