"""One file per endpoint family; plain functions that know no web framework."""
