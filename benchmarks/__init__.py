"""Benchmarks: one adapter per peer, one table of problems, one report. `python -m benchmarks --help`."""
