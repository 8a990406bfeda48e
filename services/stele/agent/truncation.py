"""TRUNCATE orders: delete what a keyspace's data held before it was truncated.

That data has an id of its own, by which nobody reads it any more since this node knows of the truncation:
writes and streamed rows of it are refused in the turn in which they would take their place in the store's
order. So what is deleted after that is all that there ever will be.
"""

from stele.agent.cleanup import Deletable, delete_all
from stele.agent.orders import OrderProgress
from stele.agent.partitions import parted
from stele.agent.spans import Span
from stele.domain.messages import Order
from stele.domain.ring.tokens import MIN_TOKEN
from stele.domain.schema.facts import owner_of
from stele.log.follower import LogFollower


class Truncator:
    """Carries TRUNCATE orders out for one node."""

    def __init__(self, follower: LogFollower, store: Deletable) -> None:
        self._follower = follower
        self._store = store

    async def run(self, order: Order, progress: OrderProgress) -> None:
        """Raises StoreError; a second run goes on where it stopped."""
        transition = self._follower.image.topology.of_session(order.session)
        assert transition is not None  # the session is open
        truncated = transition.table_id or transition.keyspace_id
        spans = [
            Span(partition, MIN_TOKEN, MIN_TOKEN)
            for partition in await self._store.partitions()
            if self._is_gone(partition) and owner_of(parted(partition)[0]) == truncated
        ]
        await delete_all(self._store, spans, lambda span: self._is_gone(span.keyspace), progress)

    def _is_gone(self, partition: str) -> bool:
        data_id, _ = parted(partition)
        return self._follower.image.schema.of_data(data_id) is None
