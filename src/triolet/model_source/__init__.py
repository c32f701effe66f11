"""Where a model comes from and what is known of it before any tensor is loaded; never torch."""
