"""The aggregates: their rows, facts, commands and images, one module each."""
