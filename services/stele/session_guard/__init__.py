"""session-guard: knows who has applied what, and lets any process check a version or a session."""
