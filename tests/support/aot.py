"""Compile the shipped kernels for GPUs that are not there, and look at the machine code.

Run as a program it prints the table that tests/kernels/aot_golden.json is made from:

    python -m support.aot --write      (in tests/)
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import attrs

GOLDEN = Path(__file__).parents[1] / "kernels" / "aot_golden.json"
SMEM_RESERVED = 1 << 10
"""Shared memory that CUDA keeps of each program's (CUDA C++ programming guide)."""


@attrs.frozen
class Variant:
    """One kernel in one configuration for one chip.

    Attributes:
        module: Of `triolet_kernels.triton`.
        kernel: Name of the kernel in it.
        label: The configuration, in a few words.
        chip: Compute capability.
        constants: Values of constexpr parameters.
        types: Types of the others; pointers default to the model's dtype.
        num_warps: Launch parameter.
        num_stages: Launch parameter.
    """

    module: str
    kernel: str
    label: str
    chip: tuple[int, int]
    constants: dict[str, Any]
    types: dict[str, str]
    num_warps: int = 4
    num_stages: int = 3

    @property
    def name(self) -> str:
        """Key of the golden table."""
        return f"{self.kernel.strip('_')} {self.label} sm_{self.chip[0]}{self.chip[1]}"


@attrs.frozen
class Compiled:
    """What came out.

    Attributes:
        registers: Per thread.
        spills: Bytes of stack plus loads and stores to local memory.
        shared: Bytes of shared memory per program.
        tensor_core: Which instructions multiply matrices: "HGMMA", "UTCHMMA", "HMMA" or "".
    """

    registers: int
    spills: int
    shared: int
    tensor_core: str


def compile_variant(variant: Variant) -> Compiled:
    """Compile one variant. Needs a process without TRITON_INTERPRET."""
    import importlib

    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    module = importlib.import_module(f"triolet_kernels.triton.{variant.module}")
    function = getattr(module, variant.kernel)
    names: list[str] = function.arg_names
    signature = {
        name: "constexpr" if name in variant.constants else variant.types[name] for name in names
    }
    aligned = {
        (names.index(name),): [["tt.divisibility", 16]]
        for name in names
        if signature[name].startswith("*")
    }
    constants = {(names.index(name),): value for name, value in variant.constants.items()}
    source = ASTSource(fn=function, signature=signature, constexprs=constants, attrs=aligned)
    major, minor = variant.chip
    options = {"num_warps": variant.num_warps, "num_stages": variant.num_stages}
    compiled = triton.compile(
        source, target=GPUTarget("cuda", 10 * major + minor, 32), options=options
    )
    usage, code = _disassemble(Path(triton.__file__).parent, compiled.asm["cubin"])
    registers, stack, local = (int(n) for n in usage)
    spills = stack + local + len(re.findall(r"\b(?:LDL|STL)\b", code))
    kinds = [kind for kind in ("UTCHMMA", "HGMMA", "HMMA") if re.search(rf"\b{kind}", code)]
    return Compiled(registers, spills, compiled.metadata.shared, kinds[0] if kinds else "")


def _disassemble(triton: Path, cubin: bytes) -> tuple[tuple[str, str, str], str]:
    """(registers, stack, local) as cuobjdump says, and the SASS."""
    program = triton / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()

        def dump(option: str) -> str:
            run = subprocess.run(
                [program, option, file.name], capture_output=True, text=True, check=True
            )
            return run.stdout + run.stderr

        found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", dump("-res-usage"))
        assert found is not None
        registers, stack, local = found.groups()
        return (registers, stack, local), dump("-sass")


def compile_all(variants: list[Variant], processes: int, cache: Path) -> dict[str, Compiled]:
    """Compile in other processes, which do not know TRITON_INTERPRET and keep their own cache."""
    import multiprocessing

    environment = {"TRITON_CACHE_DIR": str(cache), "TRITON_INTERPRET": "0"}
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(
        processes, mp_context=context, initializer=_set_environment, initargs=(environment,)
    ) as pool:
        results = pool.map(compile_variant, variants)
        return {v.name: result for v, result in zip(variants, results, strict=True)}


def _set_environment(variables: dict[str, str]) -> None:
    os.environ.update(variables)


def shipped_variants() -> list[Variant]:
    """Every kernel in the shapes and configurations that models use, on every chip."""
    from triolet_kernels.triton.launch_table import CHIPS

    variants: list[Variant] = []
    for chip in CHIPS:
        variants += _attention(chip)
        variants += _others(chip)
    return variants


_INT32 = ("table_ptr", "starts_ptr", "lens_ptr")
_ATTENTION_TYPES = {
    **dict.fromkeys(_INT32, "*i32"),
    **dict.fromkeys(("stats_ptr", "partial_ptr"), "*fp32"),
    **dict.fromkeys(("num_sequences", "table_stride", "split_stride"), "i32"),
    "scale": "fp32",
    "cap": "fp32",
}
_SHAPES = (
    # label, D, G, BS, dtype, window, cap, sinks: a common model of each kind
    ("d64g7 qwen2.5-0.5b", 64, 7, 16, "bf16", 0, False, False),
    ("d128g4 llama-3.1-8b", 128, 4, 32, "bf16", 0, False, False),
    ("d128g4 fp16", 128, 4, 16, "fp16", 0, False, False),
    ("d256g4 gemma-3", 256, 4, 32, "bf16", 512, False, False),
    ("d256g2 gemma-2", 256, 2, 16, "bf16", 4096, True, False),
    ("d64g8 gpt-oss", 64, 8, 16, "bf16", 128, False, True),
    ("d512g8 widest", 512, 8, 16, "bf16", 0, False, False),
)

_ON_HOPPER_ALONE = ("d128g4 fp16", "d256g2 gemma-2")
"""Variations of a shape that is compiled for every chip: one chip is enough for them."""


def _attention(chip: tuple[int, int]) -> list[Variant]:
    from triolet_kernels.triton.launch_table import LaunchKey, lookup

    variants: list[Variant] = []
    for label, d, g, bs, dtype, window, cap, sinks in _SHAPES:
        if label in _ON_HOPPER_ALONE and chip != (9, 0):
            continue
        model = dict.fromkeys(
            ("q_ptr", "keys_ptr", "values_ptr", "sinks_ptr", "out_ptr"), f"*{dtype}"
        )
        types = {**_ATTENTION_TYPES, **model}
        shape = {"HKV": 8, "G": g, "D": d, "DP": d, "BS": bs, "WINDOW": window, "HAS_CAP": cap}
        split = {"SPLIT_MIN": 512, "SPLITS": 32}
        launch = lookup(LaunchKey("paged_decode", d, g, bs, chip))
        decode = {**shape, **split, "GP": launch.rows, "TILE": launch.tile, "UPCAST": False}
        variants.append(
            Variant(
                "paged_decode", "_split", label, chip, decode, types,
                launch.num_warps, launch.num_stages,
            )
        )  # fmt: skip
        if label.startswith(("d128g4 llama", "d64g8")):
            merge = {
                **split, "D": d, "DP": d, "TILE": launch.tile, "WINDOW": window,
                "HAS_SINKS": sinks,
            }  # fmt: skip
            variants.append(Variant("paged_decode", "_merge", label, chip, merge, types, 4))
        launch = lookup(LaunchKey("paged_prefill", d, g, bs, chip))
        prefill = {
            **shape, "ROWS": launch.rows, "TOKENS": launch.rows // g, "TILE": launch.tile,
            "HAS_SINKS": sinks, "DECODES_TOO": False, "UPCAST": False,
        }  # fmt: skip
        variants.append(
            Variant(
                "paged_prefill", "_prefill", label, chip, prefill, types,
                launch.num_warps, launch.num_stages,
            )
        )  # fmt: skip
    return variants


def _others(chip: tuple[int, int]) -> list[Variant]:
    from triolet_kernels.triton.launch_table import warps_for_row
    from triolet_kernels.triton.sample import NUM_WARPS, TILE

    bf16, fp32, i64 = "*bf16", "*fp32", "*i64"
    norm_types = {
        **dict.fromkeys(("x_ptr", "residual_ptr", "inner_ptr", "weight_ptr", "out_ptr"), bf16),
        "width": "i32", "eps": "fp32", "offset": "fp32",
    }  # fmt: skip
    norms = [
        Variant(
            "rms_norm", "_rms_norm", f"h{width}{' inner' if inner else ''}", chip,
            {"HAS_RESIDUAL": True, "HAS_INNER": inner, "BLOCK": block}, norm_types,
            warps_for_row(width),
        )
        for width, block, inner in ((4096, 4096, False), (2304, 4096, True), (16384, 16384, False))
    ]  # fmt: skip
    rope_types = {
        **dict.fromkeys(
            ("qkv_ptr", "q_norm_ptr", "k_norm_ptr", "q_ptr", "keys_ptr", "values_ptr"), bf16
        ),
        "positions_ptr": i64, "slots_ptr": i64, "cos_ptr": fp32, "sin_ptr": fp32,
        "eps": "fp32", "offset": "fp32",
    }  # fmt: skip
    ropes = [
        Variant(
            "rope_and_store", "_rope_and_store", f"d{d}{' qk-norm' if norm else ''}", chip,
            {
                "HQ": 32, "HKV": 8, "D": d, "HALF": d // 2, "BS": 16, "HAS_Q_NORM": norm,
                "HAS_K_NORM": norm, "HEADS": 1024 // d, "DP": d,
            },
            rope_types,
        )
        for d, norm in ((128, True), (64, False))
    ]  # fmt: skip
    gates = [
        Variant(
            "activation", "_gated_activation", kind, chip, {"KIND": i, "BLOCK": 1024},
            {"gate_up_ptr": bf16, "out_ptr": bf16, "width": "i32"},
        )
        for i, kind in enumerate(("silu", "gelu_tanh"))
    ]  # fmt: skip
    rows = {"logits_ptr": fp32, "scratch_ptr": fp32, "width": "i32"}
    sampler = Variant(
        "sample", "_sample", "row", chip, {"TILE": TILE},
        {
            **rows, "temperature_ptr": fp32, "top_k_ptr": "*i32", "top_p_ptr": fp32,
            "min_p_ptr": fp32, "uniform_ptr": "*fp64", "out_ptr": i64,
        },
        NUM_WARPS,
    )  # fmt: skip
    scorer = Variant(
        "top_logprobs", "_top_logprobs", "k20", chip, {"KP": 32, "TILE": TILE},
        {
            **rows, "tokens_ptr": i64, "found_ptr": i64, "logprob_ptr": fp32, "rank_ptr": i64,
            "ids_ptr": i64, "logprobs_ptr": fp32, "k": "i32",
        },
        NUM_WARPS,
    )  # fmt: skip
    penalizer = Variant(
        "penalties", "_penalize", "row", chip, {"TILE": 512},
        {
            "logits_ptr": fp32, "rows_ptr": i64, "starts_ptr": "*i32", "ids_ptr": i64,
            "counts_ptr": fp32, "pending_ptr": i64, "repetition_ptr": fp32,
            "frequency_ptr": fp32, "presence_ptr": fp32, "width": "i32",
        },
    )  # fmt: skip
    banner = Variant(
        "bitmask", "_ban", "row", chip, {"BLOCK": 2048},
        {
            "logits_ptr": fp32, "rows_ptr": i64, "allowed_ptr": "*u8", "width": "i32",
            "num_bytes": "i32",
        },
    )  # fmt: skip
    return [*norms, *ropes, *gates, sampler, scorer, penalizer, banner]


def write_golden(results: dict[str, Compiled]) -> None:
    """Write the golden table, one variant a line."""
    import triton

    lines = [f'    "{name}": {json.dumps(attrs.asdict(r))}' for name, r in sorted(results.items())]
    text = f'{{\n  "triton": "{triton.__version__}",\n  "variants": {{\n'
    GOLDEN.write_text(text + ",\n".join(lines) + "\n  }\n}\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        table = compile_all(shipped_variants(), 2, Path(directory))
    for name, result in table.items():
        sys.stdout.write(f"{name}: {result}\n")
    if "--write" in sys.argv:
        write_golden(table)
