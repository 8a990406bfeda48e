"""The deterministic simulator: the production cores in one thread, with virtual time and a seed."""
