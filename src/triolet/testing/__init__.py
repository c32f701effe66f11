"""The public harness: the real engine on a virtual clock, faults by seed, cancellation everywhere."""
