"""What every service's shell shares: settings, logs, HTTP, topics, start and stop."""
