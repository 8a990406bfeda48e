"""Stele: the metadata of a sharded data store as one ordered log of epochs on Kafka."""

__version__ = "0.1.0"
