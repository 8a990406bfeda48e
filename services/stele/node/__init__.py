"""The node: the agent with a small store for trials.

``stele.agent`` makes any data store a member of a cluster and does not depend on how data is kept.
This package is the store.
"""
