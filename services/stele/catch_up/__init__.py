"""catch-up: keeps every epoch and snapshots of the metadata in files, and gives them to whoever needs them."""
