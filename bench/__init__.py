"""Benchmarks: oncekey, its peers and the raw limit, side by side in one run.

Machines differ and are noisy, so every figure is a ratio of medians taken in turns within one run.
"""
