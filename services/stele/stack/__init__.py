"""A real broker, Redis and every service as processes of one machine: no Docker, no root."""
