"""Snapshots of tables, which nodes keep in their backup folders, and restores from them."""
