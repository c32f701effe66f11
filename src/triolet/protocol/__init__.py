"""Wire formats in and out: frozen dataclasses, one strict converter, translation to our vocabulary."""
