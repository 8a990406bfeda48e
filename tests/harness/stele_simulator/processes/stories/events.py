"""Events.

They happen now, or at the moment in the sentence. The target is a node or service by its name (`X`, `c1`, `w1`,
`b1`), or `coordinator`, the holder of the term at that moment.
"""

from functools import partial
from typing import Final

from stele.domain import commands
from stele.domain.ddl.schema import SCHEMA_OBJECTS
from stele.domain.image import Image
from stele_simulator.processes.broker import BROKER, FLOWS
from stele_simulator.processes.data import DC
from stele_simulator.processes.releases import FEATURE, NEWER, OLDER
from stele_simulator.processes.stories.sentences import SentenceGroup
from stele_simulator.processes.stories.story import Story, everything, join_of, service_of
from stele_simulator.processes.stories.waits import features_of, until_known
from stele_simulator.processes.story_world import DATA

sentence: Final = SentenceGroup(__doc__)


@sentence(
    r"cluster (.+) rf (\d+)( with schema objects)?",
    "cluster A@100 B@200/r2 C@300,400*2 rf 2",
    "cluster A@100 B@200 rf 2 with schema objects",
)
def cluster(story: Story, nodes: str, rf: str, schema: str | None) -> None:
    """It begins, with nodes at their tokens (in a rack, with so many shards) and the keyspace `data`."""
    joins = [join_of(node) for node in nodes.split()]
    story.world.found_with(joins, {DATA: {DC: int(rf)}}, (SCHEMA_OBJECTS,) if schema else ())
    story.epochs_told = len(story.world.epochs())
    story.run_until(partial(_all_serve, story), lambda: "somebody has not read the log")


def _all_serve(story: Story) -> bool:
    """Everybody has read the log, and somebody coordinates."""
    world = story.world
    waits = [c for c in world.coordinators if c.driver is not None and c.driver.active]
    return bool(waits) and all(
        each.image is not None and each.image.epoch == story.image.epoch
        for each in world.machines.values()
    )


@sentence(r"a balancer works", "a balancer works")
def balancer_works(story: Story) -> None:
    """From now on: it moves tablets, so that they are even and leaves end."""
    story.world.start_balancer()


@sentence(r"a session guard works", "a session guard works")
def guard_works(story: Story) -> None:
    """From now on, and a client asks the guards whether the members agree on the schema."""
    story.world.start_guard()


# -- who breaks


@sentence(r"(crash|pause|wipe) (\w+)(?: ([\d.]+))?", "crash X 5", "pause X 5", "wipe X")
def strike(story: Story, what: str, who: str, seconds: str | None) -> None:
    """The process ends and restarts after this number of seconds, or pauses, or ends permanently with its
    disk lost.
    """
    story.world.strike(what, who, float(seconds or 0))


@sentence(r"when (\w+) (crash|pause|wipe) (\w+)(?: ([\d.]+))?", "when idle crash coordinator 5")
def strike_when(story: Story, state: str, what: str, who: str, seconds: str | None) -> None:
    """The same, at the next entry of a state."""
    story.world.on_state(state, partial(story.world.strike, what, who, float(seconds or 0)))


@sentence(r"(\S+) loses its rows", "X loses its rows")
def lose_rows(story: Story, name: str) -> None:
    """The node's store is empty, and nothing else of it is gone."""
    story.world.stores.forget_rows(story.world.node(name))


# -- who is cut off


@sentence(r"cut (\w+) from the log ([\d.]+)", "cut X from the log 5")
def cut_from_log(story: Story, who: str, seconds: str) -> None:
    """The process receives no new records of the log. All else works."""
    story.world.delayed_fetches.deafen(story.world.victim(who), float(seconds))


@sentence(r"cut (\w+) from the coordinators ([\d.]+)", "cut X from the coordinators 5")
def cut_from_coordinators(story: Story, who: str, seconds: str) -> None:
    """The coordinators do not receive its messages. All else works."""
    _cut(story, story.line.number, who, {FLOWS}, seconds)


@sentence(r"cut (\w+) from the brokers ([\d.]+)", "cut X from the brokers 5")
def cut_from_brokers(story: Story, who: str, seconds: str) -> None:
    """Its messages wait, and arrive afterwards."""
    _cut(story, story.line.number, who, {BROKER.name}, seconds)


@sentence(r"cut (\w+) from its peers ([\d.]+)", "cut X from its peers 5")
def cut_from_peers(story: Story, who: str, seconds: str) -> None:
    """Its connections to other nodes are cut. All else works."""
    _cut_from_peers(story, story.line.number, who, seconds)


@sentence(r"when (\w+) cut (\w+) from its peers ([\d.]+)", "when idle cut X from its peers 5")
def cut_when(story: Story, state: str, who: str, seconds: str) -> None:
    """The same, at the next entry of a state."""
    cut = partial(_cut_from_peers, story, story.line.number, who, seconds)
    story.world.on_state(state, cut)


def _cut_from_peers(story: Story, key: int, who: str, seconds: str) -> None:
    own = story.world.victim(who).name
    _cut(story, key, who, {node.name for node in story.world.nodes} - {own}, seconds)


def _cut(story: Story, key: int, who: str, others: set[str], seconds: str) -> None:
    own = story.world.victim(who).name
    pairs = {pair for name in others for pair in ((own, name), (name, own))}
    story.world.cut(key, pairs, float(seconds))


# -- clients


@sentence(r"a client writes through (\w+)", "a client writes through X")
def write_through(story: Story, name: str) -> None:
    """From now on, to `data`, one write after the other."""
    story.clients[name] = story.world.attach_client(name)


@sentence(r"a client writes to (\S+) through (\w+)", "a client writes to m.t through X")
def write_to_through(story: Story, table: str, name: str) -> None:
    """The same, to a table."""
    story.clients[name] = story.world.attach_client(name, table)


@sentence(r"a client uses (\S+)", "a client uses m.t")
def use(story: Story, name: str) -> None:
    """From now on, it writes and reads at any node; `everything` is whatever tables there are."""
    story.world.use_table(everything(name))


@sentence(
    r"a client uses columns of (\S+)(?: through (\w+))?",
    "a client uses columns of m.t",
    "a client uses columns of m.t through X",
)
def use_columns(story: Story, table: str, node: str | None) -> None:
    """From now on, it writes single columns of the table and reads its rows, at any node or at one."""
    story.world.use_columns(table, node or "")


@sentence(r"a consumer follows (\S+)", "a consumer follows m.t")
def follow_changes(story: Story, table: str) -> None:
    """From now on, it reads the changes of a captured table at any node, until the story is at rest."""
    story.world.follow_changes(table)


@sentence(r"the clock of (\w+) is ([\d.]+) late", "the clock of X is 12 late")
def set_clock(story: Story, name: str, seconds: str) -> None:
    """The machine's clock is set back by so many seconds."""
    story.world.machines[name].clock.skew_ms -= round(1000 * float(seconds))


# -- releases


@sentence(r"everybody is of the older release", "everybody is of the older release")
def begin_older(story: Story) -> None:
    """Before the cluster begins: who starts lacks a feature."""
    story.world.begin_older()


@sentence(r"(upgrade|roll back) (?!everybody\b)(\w+)", "upgrade X", "roll back X")
def install(story: Story, what: str, name: str) -> None:
    """It ends, and its next process is of the newer or older release."""
    story.world.trace(f"{name} is {'upgraded' if what == 'upgrade' else 'rolled back'}")
    build = NEWER if what == "upgrade" else OLDER
    story.world.machines[name].install(build, in_order=True)


@sentence(r"upgrade everybody", "upgrade everybody")
def upgrade_all(story: Story) -> None:
    """One after the other, each when the log knows the release of the one before."""
    for name in [*story.world.machines]:
        install(story, "upgrade", name)
        until_known(story, name)


@sentence(r"(\w+) of the older release is heard late", "X of the older release is heard late")
def hear_late(story: Story, name: str) -> None:
    """A message from before its upgrade is decided now."""
    story.world.request(_older(story.image, name))
    story.run_until(
        lambda: FEATURE not in features_of(story.image, name),
        lambda: f"it supports {features_of(story.image, name)}",
    )


def _older(image: Image, name: str) -> commands.AnyCommand:
    """Return the announcement of a node or service of the older release."""
    supported, release = tuple(sorted(OLDER.features)), OLDER.release
    row = image.node(name)
    if row is None:
        return commands.AnnounceService(
            service_id=service_of(image, name),
            supported_features=supported,
            release_version=release,
        )
    return commands.AnnounceNode(
        node_id=name,
        address=row.address,
        host_id=row.host_id,
        supported_features=supported,
        release_version=release,
    )
