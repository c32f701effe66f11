"""Structured output: which tokens may come next. In: StructuredOutputs. Out: bit masks.

Pure: no trio, no torch. `compile.py` refuses what cannot be a grammar, `check.py` proves one in
a process that can be killed, `matcher.py` follows an output in the worker.
"""
