"""Torch modules over paged attention: one generic decoder described by data, and transformers for the rest."""
