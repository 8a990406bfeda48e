"""Tablets: a table's ranges, each with replicas of its own (seed 000).

A table's tablet map is a placement like any other, with a row for each tablet; see ``ring``.
"""
