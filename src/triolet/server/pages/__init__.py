"""Quart's part of the server: pages for people. They use the public API like any client."""
