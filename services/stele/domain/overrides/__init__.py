"""Overrides: an operator replaces the state of the log, by facts of a new epoch."""
