"""Quart blueprints: pages for people."""
