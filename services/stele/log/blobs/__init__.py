"""Blobs by name in a store that is not this machine's own disk: a folder that is mounted, or S3."""
