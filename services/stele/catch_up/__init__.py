"""catch-up: follows the log and shows where it stands.

Snapshots, segments on disk, serving peers that lag, and truncating the topic are its work and come
later; until then it serves none of them, and nothing else in the cluster depends on it.
"""
