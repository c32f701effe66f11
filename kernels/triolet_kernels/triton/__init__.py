"""Every operation once more in Triton, for CUDA devices.

One file per operation, named like its twin in `reference/`, which is its oracle. A file has the
kernels and one wrapper that checks shapes and launches; `triolet_kernels.cuda` puts them
together. Rules that hold for all of them:

- every value is widened to float32 right after it is loaded, and rounded once when it is stored:
  Triton's interpreter computes nonsense in bfloat16;
- products go through `functions.dot`, with UPCAST where the interpreter runs them;
- block ids are widened to int64 before they are multiplied by a stride;
- memory that a row does not attend to is never loaded, for it may hold NaN;
- launch parameters come from `launch_table`, never from an autotuner: which kernel ran is then a
  function of the model and the device, and a captured graph is never surprised.
"""
