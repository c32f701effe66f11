"""Every operation once more in plain torch: the oracle of the tests and the fallback."""
