"""Clusters for trials and tests: the local stack, the demo, the drill and the conformance kit for agents."""
