"""Benchmarks: what the project claims, measured. Not part of the installed package."""
