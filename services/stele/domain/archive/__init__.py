"""The archive of the log: catch-up replicas, the epochs of each, and the rules of deletion."""
