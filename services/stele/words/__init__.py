"""What the log and the services say, in sentences: the command line and the console share these words."""
