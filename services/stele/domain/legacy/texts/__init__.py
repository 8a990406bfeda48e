"""What nodetool and cqlsh print, read strictly: a line that is not understood is an error."""
