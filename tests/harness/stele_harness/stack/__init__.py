"""A real broker, Redis and all services as processes of one machine, without Docker or root."""
