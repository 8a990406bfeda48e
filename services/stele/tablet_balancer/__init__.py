"""tablet-balancer: follows the log and shows where it stands.

Folding load reports and planning tablet migrations, splits and merges are its work and come with
tablets; until then it plans nothing, and nothing else in the cluster depends on it.
"""
