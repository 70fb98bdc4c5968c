"""The server's benchmarks: ``python -m bench.server``."""
