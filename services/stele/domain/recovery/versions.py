"""How far topology versions go on above those that a log is known to have had."""

from typing import Final

LOST_VERSIONS: Final = 1_000_000
"""More than a log can have made since its archives have it: a version takes at least a round to all nodes."""
