"""Operations of the model runner, dispatched by device: Triton on CUDA, native code on CPU, torch as the reference."""
