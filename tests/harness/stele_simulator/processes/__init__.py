"""Production processes under virtual time: their own shells run here, behind simulated ports."""
