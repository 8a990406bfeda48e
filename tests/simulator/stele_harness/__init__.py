"""Programs that test a cluster from outside: the demo, the drill and the conformance kit for agents."""
