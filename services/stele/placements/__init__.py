"""placements: Spark folds the logs of one cluster or a fleet into Delta tables and a compacted topic."""
