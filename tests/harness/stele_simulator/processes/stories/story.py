"""The state that the sentences of a story share: names and previous requests."""

from collections.abc import Callable
from typing import Final

import msgspec

from stele.agent.stores import parted
from stele.domain import commands
from stele.domain.image import Image
from stele.domain.ring.ranges import MIN_TOKEN, Range, contains
from stele_simulator.kernel import us
from stele_simulator.messages import Key, token_of_key
from stele_simulator.processes.data import DC
from stele_simulator.processes.members import CLUSTER
from stele_simulator.processes.step_faults import IDLE
from stele_simulator.processes.story_world import StoryClient, StoryWorld

LIMIT_S: Final = 200.0
"""Virtual seconds that an ``until`` waits."""
STEP_US: Final = 1000


class StoryError(Exception):
    """A story did not go as it is written; the text says in which line."""


class Line(msgspec.Struct, frozen=True):
    """A sentence, its number in the file, and the table under it."""

    number: int
    text: str
    table: tuple[str, ...]


class Story:
    """The state of a story on its world."""

    def __init__(self, world: StoryWorld) -> None:
        self.world = world
        self.line = Line(0, "", ())
        """The one that is played."""
        self.epochs_told = 0
        self.newcomers: dict[str, str] = {}
        """By a dead node, or by itself: the node that is to take its place."""
        self.noted: dict[str, dict[Key, int]] = {}
        """Acknowledged rows of a tablet at the request for its repair, of a table at the request for its
        snapshot.
        """
        self.clients: dict[str, StoryClient] = {}
        """By the only node that they know."""
        self._asked: dict[str, str] = {}

    @property
    def image(self) -> Image:
        return self.world.witness.image

    # -- requests

    def ask(self, name: str, command: commands.AnyCommand) -> None:
        """The request goes by the name."""
        self._asked[name] = self.world.request(command)

    def declare(self, name: str, command: commands.Remove | commands.Exclude) -> None:
        """Return the same for a command that declares the node of this name dead."""
        self._asked[name] = self.world.declare(command, name)

    def request_of(self, name: str) -> str:
        """Return the id of the newest request of this name, or of the node's join."""
        newcomer = self.image.node(self.newcomers.get(name, ""))
        if newcomer is not None:
            return newcomer.request_id
        node = self.image.node(name)
        return self._asked.get(name, "unknown" if node is None else node.request_id)

    # -- time

    def run(self, seconds: float) -> None:
        self.world.run_until(self.world.kernel.now_us + us(seconds))

    def run_until(self, holds: Callable[[], bool], found: Callable[[], str]) -> None:
        """Raises AssertionError with what was found instead."""
        deadline_us = self.world.kernel.now_us + us(LIMIT_S)
        while not holds():
            assert self.world.kernel.now_us < deadline_us, f"after {LIMIT_S:g} s: {found()}"
            self.world.run_until(self.world.kernel.now_us + STEP_US)

    # -- rows

    def cells(self, name: str) -> dict[Key, int]:
        """The timestamps of what is on the disk of a node, by partition."""
        return self.world.stores.timestamps(self.world.node(name))

    def acknowledged_of(self, data_id: str) -> dict[Key, int]:
        acknowledged = self.world.stores.acknowledged(data_id)
        return {(data_id, key.decode()): at for key, at in acknowledged.items()}

    def acknowledged(self, table: str, tablet: str = "") -> dict[Key, int]:
        """Return the acknowledged rows of a tablet, or of the whole table."""
        data = self.image.schema.serving(table)
        assert data is not None, "there is no such table"
        rows = self.image.ring.placements[data.placement].rows
        acked = self.acknowledged_of(data.data_id)
        row = rows[int(tablet)] if tablet else None
        range_ = Range(MIN_TOKEN, MIN_TOKEN) if row is None else Range(row.start, row.end)
        mine = [k for k in acked if k[0] == data.data_id and contains(range_, token_of_key(k))]
        return {key: acked[key] for key in mine}

    def lacking(self, name: str, wanted: dict[Key, int]) -> list[Key]:
        """Return the rows that a node lacks, or has in an older version, on any shard."""
        found = dict[Key, int]()
        for (partition, key), at in self.cells(name).items():
            data_id = parted(partition)[0]
            found[data_id, key] = max(at, found.get((data_id, key), 0))
        return [k for k in wanted if found.get(k, 0) < wanted[k]]


def open_states(image: Image) -> set[str]:
    """Return the states of the open transitions; ``idle`` when there is none."""
    return {str(t.state) for t in image.topology.open()} or {IDLE}


def states(image: Image) -> str:
    return ",".join(sorted(open_states(image)))


def everything(name: str) -> str:
    """The scope that a story calls ``everything`` is the empty name."""
    return "" if name == "everything" else name


def join_of(text: str) -> commands.Join:
    """Of ``node@token,token/rack*shards``."""
    name, _, rest = text.partition("@")
    rest, _, shards = rest.partition("*")
    tokens, _, rack = rest.partition("/")
    chosen = tuple(int(token) for token in tokens.split(","))
    return commands.Join(
        node_id=name,
        cluster=CLUSTER,
        address=f"http://{name}",
        dc=DC,
        rack=rack or "r1",
        num_tokens=len(chosen),
        initial_tokens=chosen,
        host_id=f"host-{name}",
        shards=int(shards or 1),
    )


def service_of(image: Image, name: str) -> str:
    """Return the id of the service whose process has this name; empty for a node or an unknown name."""
    found = (each for each in sorted(image.services.services) if each.endswith(f"/{name}"))
    return next(found, "")
