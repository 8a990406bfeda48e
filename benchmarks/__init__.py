"""Measurements on a real broker: `python -m benchmarks`. What they mean is in docs/performance.md."""
