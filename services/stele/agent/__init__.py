"""The server's library: what makes any data store a member of a Stele cluster. It knows nothing of how data is
kept.

Whole, for a store that has the functions of ``stores.Store``: ``embedded`` and ``run_store``. In parts, for one
that streams in its own way as the store for trials does: ``membership``, ``kafka_agent`` and ``Judge``.
``docs/services/agent.md`` tells how each is used.
"""

from stele.agent.codes import Code
from stele.agent.embedded import Member, embedded, open_bound, run_store
from stele.agent.probing import Refused, request_of
from stele.agent.ranges import RangesChanged
from stele.agent.settings import AgentSettings
from stele.agent.spans import Span
from stele.agent.stores import Row, Store
from stele.domain.routed import Routed

__all__ = [
    "AgentSettings",
    "Code",
    "Member",
    "RangesChanged",
    "Refused",
    "Routed",
    "Row",
    "Span",
    "Store",
    "embedded",
    "open_bound",
    "request_of",
    "run_store",
]
