"""The server's library: it makes any data store a member of a Stele cluster.

The library does not depend on how the store keeps its data.

A store that implements ``stores.Store`` uses the whole library: ``embedded`` or ``run_store``. A
store with its own streaming, such as the trial store, uses parts: ``boot``, ``Gate``,
``kafka_agent`` and ``Judge``. ``docs/guides/embed_agent.md`` describes both uses.
"""

from stele.agent.agent import kafka_agent
from stele.agent.columns import ColumnsChanged
from stele.agent.embedded import Member, embedded, open_bound, run_store
from stele.agent.gate import Gate, floor_of
from stele.agent.identity import boot
from stele.agent.judging import Code, Judge
from stele.agent.probing import Refused, request_of
from stele.agent.ranges import RangesChanged
from stele.agent.settings import AgentSettings
from stele.agent.stores import Row, Span, SplitStore, Store
from stele.domain.routed import Routed

__all__ = [
    "AgentSettings",
    "Code",
    "ColumnsChanged",
    "Gate",
    "Judge",
    "Member",
    "RangesChanged",
    "Refused",
    "Routed",
    "Row",
    "Span",
    "SplitStore",
    "Store",
    "boot",
    "embedded",
    "floor_of",
    "kafka_agent",
    "open_bound",
    "request_of",
    "run_store",
]
