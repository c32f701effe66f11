"""Structured output: a grammar proved acceptable once, then masks per row, on llguidance."""
