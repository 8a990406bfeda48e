"""The archive of a log in a blob store: catch-up's mirror, and backups."""
