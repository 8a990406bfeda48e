"""Whose commands the log takes: everybody's, nobody's while it is frozen, or those of one actor."""
