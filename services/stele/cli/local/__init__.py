"""A stack on this machine: started in the foreground or detached, looked at, added to, stopped."""
