"""Checks of a state that a person has edited, or that is to replace another one."""
