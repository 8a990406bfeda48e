"""Decided requests and their outcomes: one id has one outcome for as long as it is remembered."""
