"""Metrics, logs, traces; decides nothing."""
