"""Where the tablets of a cluster should be: shares, moves, first places, and why. Pure, and of its own:
it knows nothing of the log, so the service, the offline command and the simulator call the same functions.
"""
