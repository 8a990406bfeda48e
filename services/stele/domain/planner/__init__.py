"""The places of a cluster's tablets: shares, moves, first places, and the reasons.

The package is pure and independent of the log. The service, the offline command and the simulator
call the same functions.
"""
