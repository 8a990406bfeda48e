"""The shared shell of every service: settings, logs, HTTP, topics, start and stop."""
