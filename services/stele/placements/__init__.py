"""placements: folds the logs of one cluster or a fleet with Spark, into Delta tables and a
compacted topic.
"""
