"""Models over paged attention: one generic decoder described by data, and transformers for the rest.

In: `ModelFacts` and an `Ops`. Out: a `CausalLM` (causal_lm.py), built by `loader.load_model`.
"""
