"""Restriction of commands: the log takes those of all actors, of one actor, or of none."""
