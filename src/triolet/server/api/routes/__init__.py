"""One module per endpoint family: functions from a `Call` to a `Response`, no framework."""
