"""session-guard: follows the acks of all nodes, and lets any process check a version or a
session.
"""
