"""The command line. ``commands`` has one file per group; shared code is beside it."""
