"""The archive of a log in a blob store: the mirror of catch-up, and backups."""
