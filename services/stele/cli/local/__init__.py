"""A stack on this machine: start it in the foreground or detached, inspect, extend, stop it."""
