"""The coordinator: drives the topology state machine, one transition at a time."""
