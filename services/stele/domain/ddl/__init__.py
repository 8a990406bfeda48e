"""Changes of the schema: keyspaces, tables, views, types and functions."""
