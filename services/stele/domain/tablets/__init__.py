"""Tablets: the ranges of a table, each with its own replicas.

A tablet map is a placement with one row for each tablet; see ``ring``. Source: ScyllaDB,
topology-over-raft.md, "Tablet transitions".
"""
