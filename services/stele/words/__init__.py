"""Sentences about the log and the services, shared by the command line and the console."""
