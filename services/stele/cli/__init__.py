"""The command line: one file per command group in ``commands``, what they share beside it."""
