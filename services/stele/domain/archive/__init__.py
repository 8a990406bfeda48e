"""The archive of the log: catch-up replicas, what each of them has of it, and what may be deleted behind it."""
