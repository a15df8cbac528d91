"""How fast it is, beside others on the same machine: what scripts/benchmark.py measures."""
