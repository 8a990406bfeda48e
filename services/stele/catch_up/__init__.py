"""catch-up: keeps every epoch and snapshots of the metadata in files, and serves them to readers
that lag.
"""
