"""The node: an agent that makes any data store a member of a Stele cluster, and a small store for trials.

``agent``, ``orders``, ``identity`` and ``admission`` know nothing of how data is kept; the rest is the store.
"""
