"""Requests.

They are sent at once, and the story does not wait for the answer unless the sentence says so. A request has
the name of its node, keyspace or table, or the name in its sentence.
"""

from typing import Final

from stele.domain import commands
from stele.domain.model.operations import TabletMove, TabletRepair
from stele.domain.names import CommitMode
from stele.domain.ring.ranges import ANY
from stele.words.cql_parser import parse_cql
from stele_simulator.processes.data import DC
from stele_simulator.processes.members import CLUSTER
from stele_simulator.processes.releases import FEATURE, NewCommand
from stele_simulator.processes.stories.sentences import SentenceGroup
from stele_simulator.processes.stories.story import Story, everything, join_of, service_of

sentence: Final = SentenceGroup(__doc__)

# -- nodes


@sentence(r"join (.+)", "join X@150 Y@250,350/r2*2")
def join(story: Story, nodes: str) -> None:
    """Nodes start and ask to join, with these tokens (rack, shards)."""
    for node in nodes.split():
        command = join_of(node)
        story.world.add_node(command.node_id, command)


@sentence(r"leave (\S+)", "leave X")
def leave(story: Story, name: str) -> None:
    """That the node leaves."""
    story.ask(name, commands.Leave(name))


@sentence(r"replace (\S+) by (\S+)", "replace X by Y")
def replace(story: Story, dead: str, name: str) -> None:
    """Node Y starts and asks to take the place of X; it goes by both names."""
    row = story.image.node(dead)
    command = commands.Replace(
        node_id=name,
        replaced_id=dead,
        cluster=CLUSTER,
        address=f"http://{name}",
        dc=DC,
        rack="r1" if row is None else row.rack,
        host_id=f"host-{name}",
    )
    story.world.add_node(name, command)
    story.newcomers[dead] = story.newcomers[name] = name


@sentence(r"remove (\S+)", "remove X")
def remove(story: Story, name: str) -> None:
    """Remove the dead node from the ring."""
    story.declare(name, commands.Remove(node_id=name))


@sentence(r"remove (\S+) with force", "remove X with force")
def remove_with_force(story: Story, name: str) -> None:
    """The same, and what only that node has is given up."""
    story.world.give_up()  # the witness of stores goes by who has what, not by who must
    story.declare(name, commands.Remove(node_id=name, force=True))


@sentence(r"exclude (\S+)( with force)?", "exclude X", "exclude X with force")
def exclude(story: Story, name: str, force: str | None) -> None:
    """Exclude the dead node from barriers. With force, data that only it has is given up."""
    story.declare(name, commands.Exclude((name,), force=bool(force)))


@sentence(r"move (\S+) to ([-\d,]+)", "move X to 150,-250")
def move(story: Story, name: str, tokens: str) -> None:
    """Give the node these tokens instead of its own."""
    chosen = tuple(int(token) for token in tokens.split(","))
    story.ask(name, commands.MoveNode(node_id=name, tokens=chosen))


@sentence(r"rebuild (\S+)( with force)?", "rebuild X", "rebuild X with force")
def rebuild(story: Story, name: str, force: str | None) -> None:
    """Have the node stream all its ranges; with force, from any source."""
    story.ask(name, commands.Rebuild(node_id=name, force=bool(force)))


@sentence(r"cleanup(?: (\S+))?", "cleanup", "cleanup X")
def cleanup(story: Story, name: str | None) -> None:
    """One of all nodes, or of one; that of all goes by `cleanup`."""
    story.ask(name or "cleanup", commands.Cleanup(node_id=name or ""))


@sentence(r"cancel (\S+)", "cancel X")
def cancel(story: Story, name: str) -> None:
    """That the newest request that goes by the name is not done."""
    story.world.request(commands.Cancel(story.request_of(name)))


# -- keyspaces and tables


@sentence(r"keyspace (\S+) rf (\d+)", "keyspace k rf 1")
def create_keyspace(story: Story, name: str, rf: str) -> None:
    """A new one."""
    story.world.request(commands.CreateKeyspace(name, {DC: int(rf)}))


@sentence(r"keyspace (\S+) rf (\d+) with (\d+) tablets", "keyspace m rf 2 with 4 tablets")
def create_keyspace_with_tablets(story: Story, name: str, rf: str, tablets: str) -> None:
    """A new one whose tables have tablets; runs until it is there."""
    created = commands.CreateKeyspace(
        name, {DC: int(rf)}, tablets=True, initial_tablets=int(tablets)
    )
    story.world.request(created)
    story.run_until(lambda: name in story.image.schema.ids, lambda: "there is no such keyspace")


@sentence(r"table (\S+)(?: with (\S+))?", "table m.t", "table m.u with m.t")
def create_table(story: Story, name: str, base: str | None) -> None:
    """A new one, co-located with another; runs until it is there."""
    story.world.request(commands.CreateTable(name, colocated_with=base or ""))
    story.run_until(lambda: name in story.image.schema.table_ids, lambda: "there is no such table")


@sentence(r"alter (\S+) rf (\d+)", "alter k rf 3")
def alter(story: Story, name: str, rf: str) -> None:
    """That each key of the keyspace has so many replicas."""
    story.ask(name, commands.KeyspaceRfChange(name, {DC: int(rf)}))


@sentence(r"drop (\S+)", "drop k", "drop m.t")
def drop(story: Story, name: str) -> None:
    """That the keyspace or table is gone."""
    is_table = "." in name
    story.ask(name, commands.DropTable(name) if is_table else commands.DropKeyspace(name))


@sentence(r"truncate (\S+)", "truncate k", "truncate m.t")
def truncate(story: Story, name: str) -> None:
    """That the keyspace or table is empty."""
    story.ask(name, commands.Truncate(name))


# -- schema objects


@sentence(r"schema", "schema")
def alter_schema(story: Story) -> None:
    """The CQL statements under it, in one batch; runs until the answer."""
    outcomes = story.world.admin.outcomes
    count = len(outcomes)
    story.world.request(commands.AlterSchema(parse_cql(" ".join(story.line.table))))
    story.run_until(lambda: len(outcomes) > count, lambda: "no answer yet")


@sentence(r"schema at once", "schema at once")
def alter_schema_at_once(story: Story) -> None:
    """Each line under it is a batch of its own. All are sent at the same moment; runs until all answers."""
    outcomes = story.world.admin.outcomes
    count = len(outcomes) + len(story.line.table)
    for line in story.line.table:
        story.world.request(commands.AlterSchema(parse_cql(line)))
    story.run_until(lambda: len(outcomes) >= count, lambda: "no answer yet")


# -- tablets


@sentence(
    r"migrate (\S+)/(\d+) from (\S+) to (\S+)( with force)?",
    "migrate m.t/0 from A to B",
    "migrate m.t/0 from A to A:1",
    "migrate m.t/0 from A to B with force",
)
def migrate(
    story: Story, table: str, tablet: str, source: str, target: str, force: str | None
) -> None:
    """That a replica of the tablet moves to another node, or to shard 1 of one; goes by `m.t/0`. With force
    what only dead nodes have is given up.
    """
    node, _, shard = target.partition(":")
    moved = TabletMove(
        table=table,
        tablet=int(tablet),
        from_node=source,
        to_node=node,
        to_shard=int(shard or ANY),
        force=bool(force),
    )
    story.ask(f"{table}/{tablet}", commands.MoveTablets((moved,)))


@sentence(r"repair ([^\s/]+)", "repair m.t")
def repair_table(story: Story, table: str) -> None:
    """A repair of all its tablets; goes by `m.t/repair`."""
    story.ask(f"{table}/repair", commands.RepairTable(table))


@sentence(r"repair ([^\s/]+)/(\d+)", "repair m.t/0")
def repair_tablet(story: Story, table: str, tablet: str) -> None:
    """A repair of one tablet; goes by `m.t/0`."""
    story.noted[f"{table}/{tablet}"] = story.acknowledged(table, tablet)
    asked = TabletRepair(table=table, tablet=int(tablet))
    story.ask(f"{table}/{tablet}", commands.RepairTablets((asked,)))


@sentence(r"resize (\S+) to (\d+)", "resize m.t to 8")
def resize(story: Story, table: str, tablets: str) -> None:
    """That the table has so many tablets; goes by `m.t/resize`."""
    story.ask(f"{table}/resize", commands.ResizeTable(table, int(tablets)))


@sentence(
    r"balancing off (\S+)(?: for ([\d.]+))?", "balancing off m.t", "balancing off everything for 20"
)
def switch_balancing_off(story: Story, name: str, seconds: str | None) -> None:
    """That no balancer moves tablets of the table, or of any; for so many seconds, or until it is on."""
    until_ms = 0
    if seconds is not None:
        until_ms = story.world.admin.clock.wall_ms() + round(1000 * float(seconds))
    story.world.request(commands.SwitchBalancingOff(everything(name), until_ms))


@sentence(r"balancing on (\S+)", "balancing on m.t", "balancing on everything")
def switch_balancing_on(story: Story, name: str) -> None:
    """That one does again."""
    story.world.request(commands.SwitchBalancingOn(everything(name)))


# -- snapshots of tables


@sentence(
    r"snapshot (\S+) as (\S+)(?: for (\d+))?", "snapshot m.t as tag", "snapshot m.t as tag for 20"
)
def snapshot(story: Story, table: str, tag: str, seconds: str | None) -> None:
    """One of the table, which expires after so many seconds or never; goes by the tag."""
    story.noted[tag] = story.acknowledged(table)
    story.ask(tag, commands.SnapshotTable(name=table, snapshot=tag, expire_s=int(seconds or 0)))


@sentence(r"restore (\S+) from (\S+)", "restore m.t from tag")
def restore(story: Story, table: str, tag: str) -> None:
    """That the table has what the snapshot has; goes by `m.t/restore`."""
    story.world.restored.add(table)
    story.ask(f"{table}/restore", commands.RestoreTable(name=table, snapshot=tag))


@sentence(r"delete snapshot (\S+)", "delete snapshot tag")
def delete_snapshot(story: Story, tag: str) -> None:
    """Delete the snapshot."""
    story.world.request(commands.DeleteTableSnapshot(tag))


# -- the whole cluster


@sentence(r"quiesce", "quiesce")
def quiesce(story: Story) -> None:
    """That all requests before it have ended; goes by `quiesce`."""
    story.ask("quiesce", commands.Quiesce())


@sentence(r"noop_request", "noop_request")
def noop_request(story: Story) -> None:
    """Send a request without effects, with its turn and barriers. Its name is `noop_request`."""
    story.ask("noop_request", commands.NoopRequest())


@sentence(r"new_cdc_generation", "new_cdc_generation")
def new_cdc_generation(story: Story) -> None:
    """One, by force; goes by `new_cdc_generation`."""
    story.ask("new_cdc_generation", commands.NewCdcGeneration(force=True))


@sentence(r"freeze", "freeze")
def freeze(story: Story) -> None:
    """Freeze the log, and run until it is frozen."""
    _restrict(story, CommitMode.FROZEN)


@sentence(r"thaw", "thaw")
def thaw(story: Story) -> None:
    """That it takes everybody's; runs until it is so."""
    _restrict(story, CommitMode.OPEN)


@sentence(r"single user (\S+)", "single user coordinator")
def single_user(story: Story, actor: str) -> None:
    """That it takes those of one actor; runs until it is so."""
    _restrict(story, CommitMode.SINGLE_USER, actor)


def _restrict(story: Story, mode: CommitMode, actor: str = "") -> None:
    story.world.request(commands.RestrictCommits(mode=mode, actor=actor))
    story.run_until(lambda: story.image.commits.mode is mode, lambda: story.image.commits.mode)


@sentence(r"set (\w+) to (\w+)", "set on_unresponsive to undo")
def set_setting(story: Story, name: str, value: str) -> None:
    """A setting of the log; runs until it is so."""
    story.world.request(commands.SetSetting(name, value))

    def found() -> str:
        return story.image.features.settings.get(name, "")

    story.run_until(lambda: found() == value, found)


@sentence(r"enable the feature", "enable the feature")
def enable_feature(story: Story) -> None:
    """That all may use what the older release lacks; goes by `feature`."""
    story.ask("feature", commands.EnableFeatures((FEATURE,)))


@sentence(r"forget (\w+)", "forget w1")
def forget(story: Story, name: str) -> None:
    """By the command that comes with the newer release, that the log forgets a service."""
    story.world.request(NewCommand(service_of(story.image, name)))
