"""Measurements on a real broker: `python -m benchmarks`. What they mean is in docs/internals/performance.md."""
