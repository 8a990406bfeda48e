"""The checkers on real processes: a real stack with three brokers, real faults, a recorded history."""
