"""The deterministic simulator: production's processes in one thread, with virtual time and a seed."""
