"""A cluster of Cassandra or Scylla that keeps its metadata in gossip, and the state that it becomes here."""
