"""When each tablet was repaired last, by the log's own time."""
