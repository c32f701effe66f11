"""One module per channel, named by its two ends: listing this folder prints the wiring."""
