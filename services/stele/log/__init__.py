"""The metadata log: its records, its protocol, and the adapters that store it."""
