"""The past of a log in files: snapshots of the metadata, and segments of all epochs."""
