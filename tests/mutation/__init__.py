"""Bugs made by machine, one at a time, and which of them the tests that need no server find."""
