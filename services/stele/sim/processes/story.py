"""Stories: scenarios as text that reads like a story, with the epochs and placements that must follow.

One sentence a line; ``#`` begins a comment. Tables are the indented lines after ``epochs`` or ``placement``.

    cluster A@100 B@200 C@300 rf 2         nodes with their tokens; keyspace ``data``
    join X@150 Y@250                       nodes start and ask to join (node@token,token/rack*shards)
    leave X | cancel X | keyspace k rf 1 | drop k | truncate k   asked for at once
    keyspace m rf 2 with 4 tablets | table m.t     the same; m's tables have tablets
    resize m.t to 8                        the same; it goes by m.t/resize
    drop m.t | truncate m.t | migrate m.t/0 from A to B    the same; that of tablet 0 goes by m.t/0
    migrate m.t/0 from A to A:1            the same, to shard 1 of A
    repair m.t/0 | repair m.t              the same; that of tablet 0 goes by m.t/0, of the table by m.t/repair
    snapshot m.t as tag | snapshot m.t as tag for 20    the same; it goes by the tag, and expires after 20 s
    restore m.t from tag | delete snapshot tag    the same; the restore goes by m.t/restore
    a balancer works                       from now on: it moves tablets, so that they are even and leaves end
    balancing off m.t | balancing off m.t for 20 | balancing on m.t    the same; ``everything`` is the cluster
    freeze | thaw | single user coordinator    run until the log takes nobody's commands, all, or one actor's
    quiesce | noop_request | cleanup | cleanup X    the same; the request goes by that word, or by X
    new_cdc_generation                     the same, by force
    leave X | cancel X | keyspace k rf 1 | drop k   asked for at once
    alter k rf 3                           the same; of keyspace k, or ``data``
    remove X | exclude X                   the same; it says that X is dead for good
    remove X with force                    and what only X has is given up
    replace X by Y                         node Y starts and asks to take the place of X
    until write_both_read_old              run until a transition is in that state (``idle``: none is open)
    until X in write_both_read_old         run until that of node X is
    until it waits for X                   run until the coordinator says that it misses X
    until X is done                        run until the newest request of X has ended like that
    until X is excluded                    run until it is
    X ended because silent                 its request says so
    wait 10                                virtual seconds
    when idle crash coordinator 5          at the next entry of a state (crash, pause, wipe; seconds)
    when idle cut X from its peers 5       the same
    crash X 5 | pause X 5 | wipe X         now
    cut X from the log 5                   now: it hears nothing new of the log, all else goes on
    cut X from the coordinators 5          now: they do not hear it, all else goes on
    cut X from the brokers 5               now: what it sends waits, and arrives afterwards
    cut X from its peers 5                 now: from the other nodes, all else goes on
    a client writes through X              from now on, one write after the other
    a client writes to m.t through X       the same, to a table
    a client uses m.t                      from now on, it writes and reads at any node
    expect an answer through X             run until one of its writes is acknowledged
    expect no answer through X for 5       run so long: none of its writes is acknowledged
    refused too_few_nodes                  the newest answer was this rejection
    it names A, coordinator/c1             those that it says lack the feature
    everybody is of the older release      before the cluster begins: who starts lacks a feature
    upgrade X | roll back X                it ends, and its next process is of the newer or older release
    upgrade everybody                      one after the other, each when the log knows that of the one before
    until the log knows the release of X   run until it has told of it
    X of the older release is heard late   what a process of it said before its upgrade is decided now
    enable the feature                     asked for at once; the request goes by ``feature``
    until the feature is enabled           run until it is
    forget w1                              asked for at once: the command that comes with the newer release
    until X has stopped                    run until it says that it lacks the feature, and reads no more
    expect X has rows of m.t/0 | expect X has nothing of m.t/0    X:1 is shard 1 of it
    expect X lacks some of m.t/0           of what was acknowledged
    expect X has what was acknowledged of m.t/0 before    the repair that was asked for last
    expect X has what m.t had at tag       what was acknowledged before that snapshot was asked for
    expect X keeps a snapshot | expect X keeps none    on its disk
    expect X is left | expect fence is 12 | expect nobody needs cleanup
    epochs                                 commands applied since the last ``epochs``, and their states
    placement                              ``(MIN,100] A,B / A,B,X``: reads / writes, in any order
    tablets of m.t                         ``0 A,B / A,B,X``: the same for each tablet
"""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from stele.agent import cleanup
from stele.agent.partitions import parted
from stele.domain import commands
from stele.domain.facts import Epoch
from stele.domain.image import Image
from stele.domain.names import CommitMode
from stele.domain.ring.ranges import Range, RangeReplicas, contains
from stele.domain.ring.shards import ANY
from stele.domain.ring.tokens import MIN_TOKEN
from stele.domain.topology.operations.commands import TabletMove, TabletRepair
from stele.node import replica
from stele.sim.asked import DC, join_command, replace_command
from stele.sim.kernel import us
from stele.sim.messages import Key, token_of_key
from stele.sim.processes.interposed import Current, interposed
from stele.sim.processes.kafka import BROKER, FLOWS
from stele.sim.processes.machine import Machine
from stele.sim.processes.releases import FEATURE, NEWER, OLDER, NewCommand, bring, is_new
from stele.sim.processes.remembered import remember
from stele.sim.processes.run import Nobody, seldom_collected
from stele.sim.processes.stage import DATA, Stage, StoryClient
from stele.sim.processes.stores import watch
from stele.sim.processes.traps import IDLE

LIMIT_S: Final = 200.0
"""Virtual seconds that an ``until`` waits."""
STEP_US: Final = 1000
BATCH_ROWS: Final = 2
"""Pages have a row each, so that streams last."""
UNTOLD: Final = frozenset(
    {
        "noop",
        "claim_coordinator",
        "finish_cleanup",
        "publish_cdc_generation",
        "forget_cdc_generation",
        "expire_table_snapshot",
        "announce_service",
        "announce_node",
    }
)
"""Epochs that stories leave out: they come when they come."""


class StoryError(Exception):
    """A story did not go as it is written; the text says in which line."""


class Line(msgspec.Struct, frozen=True):
    """A sentence, its number in the file, and the table under it."""

    number: int
    text: str
    table: tuple[str, ...]


def tell(path: Path, seed: int = 0, show: Callable[[str], None] | None = None) -> Stage:
    """Play a story and check all invariants on the way. Raises StoryError or Violation."""
    current = Current(Nobody(seed))
    with seldom_collected(), interposed(current, f"story/{seed}") as patch:
        remember(patch)
        bring(patch)
        patch.attribute(replica, "MAX_PAGE_BYTES", 1)
        patch.attribute(cleanup, "BATCH_ROWS", BATCH_ROWS)
        stage = Stage(seed, current, keep_trace=show is not None)
        watch(patch, stage, lambda: current.who)
        story = Story(stage)
        try:
            for line in read_lines(path.read_text()):
                try:
                    story.play(line)
                except (AssertionError, StoryError) as error:
                    raise StoryError(f"{path.name}:{line.number}: {line.text}: {error}") from error
            stage.come_to_rest()
        finally:
            if show is not None:
                for text in stage.lines:
                    show(text)
            stage.end()
    return stage


def read_lines(text: str) -> list[Line]:
    """Sentences with their tables."""
    found: list[Line] = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.split("#")[0].rstrip()
        if not line:
            continue
        if line.startswith(" "):
            last = found[-1]
            found[-1] = msgspec.structs.replace(last, table=(*last.table, " ".join(line.split())))
        else:
            found.append(Line(number, " ".join(line.split()), ()))
    return found


class Story:
    """A stage that sentences are played on."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._told = 0
        self._asked: dict[str, str] = {}
        self._newcomers: dict[str, str] = {}
        """By a dead node, or by itself: the node that is to take its place."""
        self._noted: dict[str, dict[Key, int]] = {}
        """What was acknowledged of a tablet when its repair was asked for."""
        self._attached: dict[str, StoryClient] = {}

    def play(self, line: Line) -> None:
        for pattern, method in _SENTENCES:
            match = re.fullmatch(pattern, line.text)
            if match is not None:
                getattr(self, method)(line, *match.groups())
                return
        raise StoryError("nobody understands this sentence; see stele/sim/processes/story.py")

    def cluster(self, line: Line, nodes: str, rf: str) -> None:
        joins = [_join(node) for node in nodes.split()]
        self.stage.found_with(joins, {DATA: {DC: int(rf)}})
        self._told = len(self.stage.epochs())
        self._run_until(self._all_serve, lambda: "somebody has not read the log")

    def join(self, line: Line, nodes: str) -> None:
        for node in nodes.split():
            join = _join(node)
            self.stage.add_node(join.node_id, join)

    def ask(self, line: Line, what: str, name: str) -> None:
        if what == "drop" and "." in name:
            self._asked[name] = self.stage.request(commands.DropTable(name))
        elif what == "leave":
            self._asked[name] = self.stage.request(commands.Leave(name))
        elif what == "remove":
            self._asked[name] = self._declare(commands.Remove(node_id=name), name)
        elif what == "exclude":
            self._asked[name] = self._declare(commands.Exclude((name,)), name)
        elif what in _ASKED:
            self._asked[name] = self.stage.request(_ASKED[what](name))
        else:
            self.stage.request(commands.Cancel(self._request_of(name)))

    def move(self, line: Line, name: str, tokens: str) -> None:
        chosen = tuple(int(token) for token in tokens.split(","))
        self._asked[name] = self.stage.request(commands.MoveNode(node_id=name, tokens=chosen))

    def rebuild(self, line: Line, name: str, force: str | None) -> None:
        asked = commands.Rebuild(node_id=name, force=bool(force))
        self._asked[name] = self.stage.request(asked)

    def loses_rows(self, line: Line, name: str) -> None:
        self.stage.stores.forget_rows(self.stage.node(name))

    def expect_rows(self, line: Line, name: str) -> None:
        found, mine = self._read_cells(name), dict[Key, int]()
        for data in self.image.schema.all_data():
            placement = self.image.ring.placements[data.placement]
            for key, at in self._acked(data.data_id).items():
                if name in placement.row_for(token_of_key(key)).writes:
                    mine[key] = at
        lacking = [key for key, at in mine.items() if found.get(key, 0) < at]
        assert mine and not lacking, f"it lacks {lacking[:3]} of {len(mine)}"

    def expect_of_tablet(self, line: Line, place: str, what: str, table: str, tablet: str) -> None:
        """On any shard of a node, or the one that is named."""
        name, _, shard = place.partition(":")
        data = self.image.schema.serving(table)
        assert data is not None, "there is no such table"
        row = self.image.ring.placements[data.placement].rows[int(tablet)]
        cells, range_ = self._cells(name), Range(row.start, row.end)
        wanted = (data.data_id, int(shard)) if shard else None
        found = [
            k
            for k in cells
            if contains(range_, token_of_key(k))
            and (parted(k[0]) == wanted if wanted else parted(k[0])[0] == data.data_id)
        ]
        assert bool(found) == (what == "rows"), f"it has {len(found)}"

    def expect_lacks(self, line: Line, name: str, table: str, tablet: str) -> None:
        assert self._lacking(name, self._acknowledged(table, tablet)), "it lacks nothing"

    def expect_repaired(self, line: Line, name: str, table: str, tablet: str) -> None:
        """By what was acknowledged when the repair was asked for."""
        noted = self._noted[f"{table}/{tablet}"]
        lacking = self._lacking(name, noted)
        assert noted and not lacking, f"it lacks {lacking[:3]} of {len(noted)}"

    def _acknowledged(self, table: str, tablet: str = "") -> dict[Key, int]:
        data = self.image.schema.serving(table)
        assert data is not None, "there is no such table"
        rows, acked = self.image.ring.placements[data.placement].rows, self._acked(data.data_id)
        row = rows[int(tablet)] if tablet else None
        range_ = Range(MIN_TOKEN, MIN_TOKEN) if row is None else Range(row.start, row.end)
        mine = [k for k in acked if k[0] == data.data_id and contains(range_, token_of_key(k))]
        return {key: acked[key] for key in mine}

    def _lacking(self, name: str, wanted: dict[Key, int]) -> list[Key]:
        found = self._read_cells(name)
        return [k for k in wanted if found.get(k, 0) < wanted[k]]

    def ask_all(self, line: Line, what: str) -> None:
        self._asked[what] = self.stage.request(_ASKED[what](""))

    def force(self, line: Line, name: str) -> None:
        self._gives_up(name)
        self._asked[name] = self._declare(commands.Remove(node_id=name, force=True), name)

    def replace(self, line: Line, dead: str, name: str) -> None:
        row = self.image.node(dead)
        self.stage.add_node(name, replace_command(name, dead, "r1" if row is None else row.rack))
        self._newcomers[dead] = self._newcomers[name] = name

    # -- what another world has elsewhere

    def _declare(self, command: commands.Remove | commands.Exclude, name: str) -> str:
        return self.stage.declare(command, name)

    def _gives_up(self, name: str) -> None:
        """The witness of stores goes by who has what, not by who must."""
        self.stage.give_up()

    def _cells(self, name: str) -> dict[Key, int]:
        return self.stage.stores.timestamps(self.stage.node(name))

    def _read_cells(self, name: str) -> dict[Key, int]:
        found = dict[Key, int]()
        for (partition, key), at in self._cells(name).items():
            data_id = parted(partition)[0]
            found[data_id, key] = max(at, found.get((data_id, key), 0))
        return found

    def _acked(self, data_id: str) -> dict[Key, int]:
        acknowledged = self.stage.stores.acknowledged(data_id)
        return {(data_id, key.decode()): at for key, at in acknowledged.items()}

    def _backups(self, name: str) -> list[str]:
        return self.stage.backup_files(name)

    # --

    def _all_serve(self) -> bool:
        """Everybody has read the log, and somebody coordinates."""
        waits = [c for c in self.stage.coordinators if c.driver is not None and c.driver.active]
        machines = self.stage.machines.values()
        return bool(waits) and all(
            each.image is not None and each.image.epoch == self.image.epoch for each in machines
        )

    def _request_of(self, name: str) -> str:
        newcomer = self.image.node(self._newcomers.get(name, ""))
        return self._asked_of(name) if newcomer is None else newcomer.request_id

    def _asked_of(self, name: str) -> str:
        node = self.image.node(name)
        return self._asked.get(name, "unknown" if node is None else node.request_id)

    def keyspace(self, line: Line, name: str, rf: str) -> None:
        self.stage.request(commands.CreateKeyspace(name, {DC: int(rf)}))

    def tablet_keyspace(self, line: Line, name: str, rf: str, tablets: str) -> None:
        created = commands.CreateKeyspace(
            name, {DC: int(rf)}, tablets=True, initial_tablets=int(tablets)
        )
        self.stage.request(created)
        self._run_until(lambda: name in self.image.schema.ids, lambda: "there is no such keyspace")

    def table(self, line: Line, name: str, base: str | None) -> None:
        self.stage.request(commands.CreateTable(name, colocated_with=base or ""))
        self._run_until(
            lambda: name in self.image.schema.table_ids, lambda: "there is no such table"
        )

    def migrate(self, line: Line, table: str, tablet: str, source: str, target: str) -> None:
        node, _, shard = target.partition(":")
        move = TabletMove(
            table=table,
            tablet=int(tablet),
            from_node=source,
            to_node=node,
            to_shard=int(shard or ANY),
        )
        self._asked[f"{table}/{tablet}"] = self.stage.request(commands.MoveTablets((move,)))

    def repair(self, line: Line, table: str, tablet: str | None) -> None:
        if tablet is None:
            self._asked[f"{table}/repair"] = self.stage.request(commands.RepairTable(table))
            return
        self._noted[f"{table}/{tablet}"] = self._acknowledged(table, tablet)
        asked = TabletRepair(table=table, tablet=int(tablet))
        self._asked[f"{table}/{tablet}"] = self.stage.request(commands.RepairTablets((asked,)))

    def snapshot(self, line: Line, table: str, tag: str, seconds: str | None) -> None:
        asked = commands.SnapshotTable(name=table, snapshot=tag, expire_s=int(seconds or 0))
        self._noted[tag] = self._acknowledged(table)
        self._asked[tag] = self.stage.request(asked)

    def restore(self, line: Line, table: str, tag: str) -> None:
        self.stage.restored.add(table)
        asked = commands.RestoreTable(name=table, snapshot=tag)
        self._asked[f"{table}/restore"] = self.stage.request(asked)

    def delete_snapshot(self, line: Line, tag: str) -> None:
        self.stage.request(commands.DeleteTableSnapshot(tag))

    def expect_restored(self, line: Line, name: str, table: str, tag: str) -> None:
        """By what was acknowledged when the snapshot was asked for, of the tablets that it has."""
        data = self.image.schema.serving(table)
        assert data is not None, "there is no such table"
        placement, keys = self.image.ring.placements[data.placement], self._noted[tag].items()
        noted = {(data.data_id, key[1]): at for key, at in keys}
        mine = {
            k: at for k, at in noted.items() if name in placement.row_for(token_of_key(k)).reads
        }
        lacking = self._lacking(name, mine)
        assert mine and not lacking, f"it lacks {lacking[:3]} of {len(mine)}"

    def expect_backup(self, line: Line, name: str, what: str) -> None:
        kept = partial(self._backups, name)
        is_right = lambda: bool(kept()) == (what == "a snapshot")  # noqa: E731
        self._run_until(is_right, lambda: f"it has {len(kept())}")

    def freeze(self, line: Line, actor: str = "") -> None:
        mode = CommitMode.SINGLE_USER if actor else _MODES[line.text]
        self.stage.request(commands.RestrictCommits(mode=mode, actor=actor))
        self._run_until(lambda: self.image.commits.mode is mode, lambda: self.image.commits.mode)

    def balance(self, line: Line) -> None:
        self.stage.start_balancer()

    def switch_off(self, line: Line, name: str, seconds: str | None) -> None:
        until_ms = 0
        if seconds is not None:
            until_ms = self.stage.admin.clock.wall_ms() + round(1000 * float(seconds))
        self.stage.request(commands.SwitchBalancingOff(_scope(name), until_ms))

    def switch_on(self, line: Line, name: str) -> None:
        self.stage.request(commands.SwitchBalancingOn(_scope(name)))

    def resize(self, line: Line, table: str, tablets: str) -> None:
        command = commands.ResizeTable(table, int(tablets))
        self._asked[f"{table}/resize"] = self.stage.request(command)

    def use_table(self, line: Line, name: str) -> None:
        self.stage.use_table(_scope(name))

    def alter(self, line: Line, name: str, rf: str) -> None:
        self._asked[name] = self.stage.request(commands.KeyspaceRfChange(name, {DC: int(rf)}))

    def until(self, line: Line, state: str) -> None:
        self._run_until(lambda: state in _open_states(self.image), lambda: _states(self.image))

    def until_in(self, line: Line, name: str, state: str) -> None:
        def current() -> str:
            found = self.image.topology.of_request(self._request_of(name))
            return "in none" if found is None else str(found.state)

        self._run_until(lambda: current() == state, current)

    def until_waits(self, line: Line, name: str) -> None:
        def missed() -> set[str]:
            waits = self.stage.told_by_coordinator()
            return {blocker.node_id for wait in waits for blocker in wait.blockers}

        self._run_until(lambda: name in missed(), lambda: f"it waits for {sorted(missed())}")

    def because(self, line: Line, name: str, text: str) -> None:
        request = self.image.request(self._request_of(name))
        assert request is not None, "there is no such request"
        assert text in request.error, f"its reason is '{request.error}'"

    def until_request(self, line: Line, name: str, status: str) -> None:
        def current() -> str:
            request = self.image.request(self._request_of(name))
            return "unknown" if request is None else str(request.status)

        self._run_until(lambda: current() == status, current)

    def until_excluded(self, line: Line, name: str) -> None:
        self._run_until(lambda: name in self.image.membership.excluded(), lambda: "it is not")

    def attach(self, line: Line, name: str) -> None:
        self._attached[name] = self.stage.attach_client(name)

    def attach_to(self, line: Line, table: str, name: str) -> None:
        self._attached[name] = self.stage.attach_client(name, table)

    def expect_no_answer(self, line: Line, name: str, seconds: str) -> None:
        client = self._attached[name]
        before, tries = client.acknowledged, client.tries
        self._run(float(seconds))
        assert client.tries > tries, "it does not write any more"
        assert client.acknowledged == before, "some were acknowledged"

    def expect_answers(self, line: Line, name: str) -> None:
        client = self._attached[name]
        before = client.acknowledged
        self._run_until(lambda: client.acknowledged > before, lambda: "none is acknowledged")

    def wait(self, line: Line, seconds: str) -> None:
        self._run(float(seconds))

    def when(self, line: Line, state: str, what: str, who: str, seconds: str | None) -> None:
        self.stage.on_state(state, partial(self.stage.strike, what, who, float(seconds or 0)))

    def when_cut(self, line: Line, state: str, who: str, seconds: str) -> None:
        self.stage.on_state(state, lambda: self.cut_from(line, who, "its peers", seconds))

    def strike(self, line: Line, what: str, who: str, seconds: str | None) -> None:
        self.stage.strike(what, who, float(seconds or 0))

    def cut_from_log(self, line: Line, who: str, seconds: str) -> None:
        self.stage.deafness.deafen(self.stage.victim(who), float(seconds))

    def cut_from(self, line: Line, who: str, others: str, seconds: str) -> None:
        peers, own = {node.name for node in self.stage.nodes}, self.stage.victim(who).name
        servers = {"the coordinators": FLOWS, "the brokers": BROKER.name}
        names = {servers[others]} if others in servers else peers - {own}
        pairs = {pair for name in names for pair in ((own, name), (name, own))}
        self.stage.cut(line.number, pairs, float(seconds))

    def refused(self, line: Line, code: str) -> None:
        """Of what was asked at once who is answered first is chance."""
        admin = self.stage.admin
        self._run_until(lambda: not admin.waiting, lambda: "no answer yet")
        codes = [outcome.rejection.code for outcome in admin.outcomes if outcome.rejection]
        newest = codes[-1] if codes else "nothing"
        assert newest == code, f"the newest refusal is {newest}"

    def names(self, line: Line, who: str) -> None:
        refusals = filter(None, (outcome.rejection for outcome in self.stage.admin.outcomes))
        newest = [*refusals][-1].details
        named = [name for name in f"{newest['nodes']},{newest['services']}".split(",") if name]
        assert ", ".join(named) == who, f"it names {', '.join(named)}"

    def older(self, line: Line) -> None:
        self.stage.begin_older()

    def install(self, line: Line, what: str, name: str) -> None:
        self.stage.trace(f"{name} is {'upgraded' if what == 'upgrade' else 'rolled back'}")
        build = NEWER if what == "upgrade" else OLDER
        self.stage.machines[name].install(build, in_order=True)

    def upgrade_all(self, line: Line) -> None:
        for name in [*self.stage.machines]:
            self.install(line, "upgrade", name)
            self.until_known(line, name)

    def until_known(self, line: Line, name: str) -> None:
        is_known = partial(self._is_known, self.stage.machines[name])
        self._run_until(is_known, lambda: f"it supports {_features_of(self.image, name)}")

    def _is_known(self, machine: Machine) -> bool:
        return (FEATURE in _features_of(self.image, machine.name)) == is_new(machine.installed)

    def hear_late(self, line: Line, name: str) -> None:
        self.stage.request(_older(self.image, name))
        self._run_until(
            lambda: FEATURE not in _features_of(self.image, name),
            lambda: f"it supports {_features_of(self.image, name)}",
        )

    def enable(self, line: Line) -> None:
        self._asked["feature"] = self.stage.request(commands.EnableFeatures((FEATURE,)))

    def until_enabled(self, line: Line) -> None:
        enabled = self.stage.releases.is_enabled
        self._run_until(enabled, lambda: str(self.stage.told_by_coordinator()))

    def forget(self, line: Line, name: str) -> None:
        self.stage.request(NewCommand(_service_of(self.image, name)))

    def until_stopped(self, line: Line, name: str) -> None:
        machine = self.stage.machines[name]
        self._run_until(
            lambda: self.stage.releases.has_stopped(machine),
            lambda: str(machine.failure or machine.ended_by or "it goes on"),
        )

    def expect(self, line: Line, what: str, value: str) -> None:
        topology, node = self.image.topology, self.image.node(what)
        facts = {
            "fence": str(topology.fence_version),
            "version": str(topology.version),
            "state": _states(self.image),
            **({what: str(node.state)} if node is not None else {}),
        }
        assert facts.get(what) == value, f"it is {facts.get(what)}"

    def expect_clean(self, line: Line) -> None:
        def dirty() -> list[str]:
            nodes = self.image.membership.normal().items()
            return [n for n, node in nodes if node.cleanup_since and n not in self.stage.gone]

        self._run_until(lambda: not dirty(), lambda: f"{dirty()} do")

    def epochs(self, line: Line) -> None:
        new = self.stage.epochs()[self._told :]
        self._told += len(new)
        found = tuple(
            _epoch_text(image, epoch) for epoch, image in new if epoch.command not in UNTOLD
        )
        assert found == line.table, f"the epochs are {', '.join(found)}"

    def placement(self, line: Line) -> None:
        placement = self.image.placement_of(DATA)
        assert placement is not None
        found = tuple(
            f"({_bound(r.start)},{_bound(r.end)}] {_names(r.reads)} / {_names(r.writes)}"
            for r in placement.rows
        )
        assert found == tuple(_sorted_row(row) for row in line.table), f"it is {found}"

    def tablets(self, line: Line, name: str) -> None:
        data = self.image.schema.serving(name)
        assert data is not None, "there is no such table"
        rows = self.image.ring.placements[data.placement].rows
        found = tuple(
            f"{tablet} {_places(row, row.reads)} / {_places(row, row.writes)}"
            for tablet, row in enumerate(rows)
        )
        assert found == tuple(_sorted_row(row) for row in line.table), f"it is {found}"

    @property
    def image(self) -> Image:
        return self.stage.witness.image

    def _run(self, seconds: float) -> None:
        self.stage.run_until(self.stage.kernel.now_us + us(seconds))

    def _run_until(self, holds: Callable[[], bool], found: Callable[[], str]) -> None:
        deadline_us = self.stage.kernel.now_us + us(LIMIT_S)
        while not holds():
            assert self.stage.kernel.now_us < deadline_us, f"after {LIMIT_S:g} s: {found()}"
            self.stage.run_until(self.stage.kernel.now_us + STEP_US)


_ASKED: Final[dict[str, Callable[[str], commands.AnyCommand]]] = {
    "drop": commands.DropKeyspace,
    "truncate": commands.Truncate,
    "cleanup": lambda node_id: commands.Cleanup(node_id=node_id),
    "quiesce": lambda _: commands.Quiesce(),
    "noop_request": lambda _: commands.NoopRequest(),
    "new_cdc_generation": lambda _: commands.NewCdcGeneration(force=True),
}
_MODES: Final = {"freeze": CommitMode.FROZEN, "thaw": CommitMode.OPEN}
_SENTENCES: Final[tuple[tuple[str, str], ...]] = (
    (r"cluster (.+) rf (\d+)", "cluster"),
    (r"join (.+)", "join"),
    (r"(leave|remove|exclude|cancel|drop|truncate|cleanup) (\S+)", "ask"),
    (r"(quiesce|noop_request|cleanup|new_cdc_generation)", "ask_all"),
    (r"remove (\S+) with force", "force"),
    (r"move (\S+) to ([-\d,]+)", "move"),
    (r"rebuild (\S+)( with force)?", "rebuild"),
    (r"(\S+) loses its rows", "loses_rows"),
    (r"expect (\S+) has all that was acknowledged", "expect_rows"),
    (r"expect (\S+) has (rows|nothing) of (\S+)/(\d+)", "expect_of_tablet"),
    (r"expect (\S+) lacks some of (\S+)/(\d+)", "expect_lacks"),
    (r"expect (\S+) has what was acknowledged of (\S+)/(\d+) before", "expect_repaired"),
    (r"replace (\S+) by (\S+)", "replace"),
    (r"keyspace (\S+) rf (\d+)", "keyspace"),
    (r"keyspace (\S+) rf (\d+) with (\d+) tablets", "tablet_keyspace"),
    (r"table (\S+)(?: with (\S+))?", "table"),
    (r"migrate (\S+)/(\d+) from (\S+) to (\S+)", "migrate"),
    (r"repair ([^\s/]+)(?:/(\d+))?", "repair"),
    (r"resize (\S+) to (\d+)", "resize"),
    (r"snapshot (\S+) as (\S+)(?: for (\d+))?", "snapshot"),
    (r"restore (\S+) from (\S+)", "restore"),
    (r"delete snapshot (\S+)", "delete_snapshot"),
    (r"expect (\S+) has what (\S+) had at (\S+)", "expect_restored"),
    (r"expect (\S+) keeps (a snapshot|none)", "expect_backup"),
    (r"freeze|thaw", "freeze"),
    (r"single user (\S+)", "freeze"),
    (r"a balancer works", "balance"),
    (r"balancing off (\S+)(?: for ([\d.]+))?", "switch_off"),
    (r"balancing on (\S+)", "switch_on"),
    (r"alter (\S+) rf (\d+)", "alter"),
    (r"until (\w+)", "until"),
    (r"until it waits for (\S+)", "until_waits"),
    (r"until (\S+) is excluded", "until_excluded"),
    (r"until (\S+) is (\w+)", "until_request"),
    (r"until (\S+) in (\w+)", "until_in"),
    (r"(\S+) ended because (.+)", "because"),
    (r"wait ([\d.]+)", "wait"),
    (r"when (\w+) (crash|pause|wipe) (\w+)(?: ([\d.]+))?", "when"),
    (r"when (\w+) cut (\w+) from its peers ([\d.]+)", "when_cut"),
    (r"(crash|pause|wipe) (\w+)(?: ([\d.]+))?", "strike"),
    (r"cut (\w+) from the log ([\d.]+)", "cut_from_log"),
    (r"cut (\w+) from (the coordinators|the brokers|its peers) ([\d.]+)", "cut_from"),
    (r"a client writes through (\w+)", "attach"),
    (r"a client writes to (\S+) through (\w+)", "attach_to"),
    (r"a client uses (\S+)", "use_table"),
    (r"expect no answer through (\w+) for ([\d.]+)", "expect_no_answer"),
    (r"expect an answer through (\w+)", "expect_answers"),
    (r"refused (\w+)", "refused"),
    (r"it names (.+)", "names"),
    (r"everybody is of the older release", "older"),
    (r"upgrade everybody", "upgrade_all"),
    (r"(upgrade|roll back) (\w+)", "install"),
    (r"until the log knows the release of (\w+)", "until_known"),
    (r"(\w+) of the older release is heard late", "hear_late"),
    (r"enable the feature", "enable"),
    (r"until the feature is enabled", "until_enabled"),
    (r"forget (\w+)", "forget"),
    (r"until (\w+) has stopped", "until_stopped"),
    (r"expect nobody needs cleanup", "expect_clean"),
    (r"expect (\w+) is (\w+)", "expect"),
    (r"epochs", "epochs"),
    (r"placement", "placement"),
    (r"tablets of (\S+)", "tablets"),
)
"""What is said, and the method of ``Story`` that plays it."""


def _join(text: str) -> commands.Join:
    name, _, rest = text.partition("@")
    rest, _, shards = rest.partition("*")
    tokens, _, rack = rest.partition("/")
    chosen = tuple(int(token) for token in tokens.split(","))
    return join_command(name, rack or "r1", len(chosen), chosen, int(shards or 1))


def _service_of(image: Image, name: str) -> str:
    """The id of the service whose process has this name; empty: it is a node, or nobody knows it."""
    found = (each for each in sorted(image.services.services) if each.endswith(f"/{name}"))
    return next(found, "")


def _features_of(image: Image, name: str) -> tuple[str, ...]:
    """What the log says that a node or a service supports."""
    row = image.node(name)
    if row is not None:
        return row.supported_features
    service = image.services.services.get(_service_of(image, name))
    return () if service is None else service.supported_features


def _older(image: Image, name: str) -> commands.AnyCommand:
    """What a node or a service says of itself as one of the older release."""
    supported, release = tuple(sorted(OLDER.features)), OLDER.release
    row = image.node(name)
    if row is None:
        return commands.AnnounceService(
            service_id=_service_of(image, name),
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


def _scope(name: str) -> str:
    return "" if name == "everything" else name


def _states(image: Image) -> str:
    return ",".join(sorted(_open_states(image)))


def _open_states(image: Image) -> set[str]:
    """Of the open transitions; ``idle`` when there is none."""
    return {str(t.state) for t in image.topology.open()} or {IDLE}


def _epoch_text(image: Image, epoch: Epoch) -> str:
    """``advance -> write_both_read_old``; the state only where the command may change it."""
    moves = epoch.command in ("advance", "rollback", "cancel")
    return f"{epoch.command} -> {_states(image)}" if moves else epoch.command


def _bound(token: int) -> str:
    return "MIN" if token == MIN_TOKEN else str(token)


def _places(row: RangeReplicas, nodes: tuple[str, ...]) -> str:
    return _names(tuple(map(row.place, nodes)))


def _names(nodes: tuple[str, ...]) -> str:
    return ",".join(sorted(nodes))


def _sorted_row(text: str) -> str:
    range_, reads, _, writes = text.split(" ")
    return f"{range_} {_names(tuple(reads.split(',')))} / {_names(tuple(writes.split(',')))}"
