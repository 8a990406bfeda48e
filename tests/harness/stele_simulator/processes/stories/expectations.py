"""Expectations.

An expectation holds now, or the story fails. One that runs until it holds waits at most 200 virtual seconds.
"""

from typing import Final

from stele.agent.stores import parted
from stele.domain.facts import Epoch
from stele.domain.image import Image
from stele.domain.ring.ranges import MIN_TOKEN, Range, RangeReplicas, contains
from stele_simulator.messages import Key, token_of_key
from stele_simulator.processes.stories.sentences import SentenceGroup
from stele_simulator.processes.stories.story import Story, states
from stele_simulator.processes.story_world import DATA

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
sentence: Final = SentenceGroup(__doc__)

# -- the log


@sentence(r"epochs", "epochs")
def epochs(story: Story) -> None:
    """The table under it has the commands applied since the last `epochs`, and where a state may have changed
    the states of then: `advance -> write_both_read_old`.
    """
    new = story.world.epochs()[story.epochs_told :]
    story.epochs_told += len(new)
    found = tuple(_epoch_text(image, epoch) for epoch, image in new if epoch.command not in UNTOLD)
    assert found == story.line.table, f"the epochs are {', '.join(found)}"


@sentence(r"placement", "placement")
def placement(story: Story) -> None:
    """Compare the placement of `data`: `(MIN,100] A,B / A,B,X` for each range, readers and writers, in any
    order.
    """
    placed = story.image.placement_of(DATA)
    assert placed is not None
    found = tuple(
        f"({_bound(r.start)},{_bound(r.end)}] {_names(r.reads)} / {_names(r.writes)}"
        for r in placed.rows
    )
    assert found == tuple(_sorted_row(row) for row in story.line.table), f"it is {found}"


@sentence(r"tablets of (\S+)", "tablets of m.t")
def tablets(story: Story, name: str) -> None:
    """The same for each tablet, `0 A,B / A,B:1,X`; B:1 is shard 1 of B."""
    data = story.image.schema.serving(name)
    assert data is not None, "there is no such table"
    rows = story.image.ring.placements[data.placement].rows
    found = tuple(
        f"{tablet} {_places(row, row.reads)} / {_places(row, row.writes)}"
        for tablet, row in enumerate(rows)
    )
    assert found == tuple(_sorted_row(row) for row in story.line.table), f"it is {found}"


@sentence(
    r"expect (\w+) is (\w+)",
    "expect X is left",
    "expect fence is 12",
    "expect version is 12",
    "expect state is idle",
)
def expect_is(story: Story, what: str, value: str) -> None:
    """The state of a node, or of the topology."""
    topology, node = story.image.topology, story.image.node(what)
    facts = {
        "fence": str(topology.fence_version),
        "version": str(topology.version),
        "state": states(story.image),
        **({what: str(node.state)} if node is not None else {}),
    }
    assert facts.get(what) == value, f"it is {facts.get(what)}"


@sentence(r"expect nobody needs cleanup", "expect nobody needs cleanup")
def expect_clean(story: Story) -> None:
    """Runs until no member that is there has rows that are not its own."""

    def dirty() -> list[str]:
        nodes = story.image.membership.normal().items()
        return [n for n, node in nodes if node.cleanup_since and n not in story.world.gone]

    story.run_until(lambda: not dirty(), lambda: f"{dirty()} do")


# -- answers


@sentence(r"(\S+) ended because (.+)", "X ended because Dead nodes: C")
def ended_because(story: Story, name: str, text: str) -> None:
    """The reason that the newest request by this name gives has these words."""
    request = story.image.request(story.request_of(name))
    assert request is not None, "there is no such request"
    assert text in request.error, f"its reason is '{request.error}'"


@sentence(
    r"refused (\w+)(?: or (\w+))?", "refused too_few_nodes", "refused unknown_type or type_in_use"
)
def refused(story: Story, code: str, other: str | None) -> None:
    """Runs until all that was asked has an answer; the newest rejection is this, or one of these two."""
    # the order of answers to concurrent requests is random
    admin = story.world.admin
    story.run_until(lambda: not admin.waiting, lambda: "no answer yet")
    codes = [outcome.rejection.code for outcome in admin.outcomes if outcome.rejection]
    newest = codes[-1] if codes else "nothing"
    assert newest in (code, other), f"the newest refusal is {newest}"


@sentence(r"applied", "applied")
def applied(story: Story) -> None:
    """The newest request that was answered was applied."""
    refused = story.world.admin.outcomes[-1].rejection
    assert refused is None, f"it was refused: {refused}"


@sentence(r"it names (.+)", "it names A, coordinator/c1")
def it_names(story: Story, who: str) -> None:
    """Compare the nodes that lack the feature by the newest rejection."""
    refusals = filter(None, (outcome.rejection for outcome in story.world.admin.outcomes))
    newest = [*refusals][-1].details
    named = [name for name in f"{newest['nodes']},{newest['services']}".split(",") if name]
    assert ", ".join(named) == who, f"it names {', '.join(named)}"


@sentence(r"expect no agreement for ([\d.]+)", "expect no agreement for 5")
def expect_no_agreement(story: Story, seconds: str) -> None:
    """Runs so many seconds: no guard answers that all members have applied the newest epoch of now."""
    asked = story.image.epoch
    story.run(float(seconds))
    assert story.world.agreement.newest < asked, "all agree"


@sentence(r"expect an answer through (\w+)", "expect an answer through X")
def expect_answer(story: Story, name: str) -> None:
    """Runs until a write of the client there is acknowledged."""
    client = story.clients[name]
    before = client.acknowledged
    story.run_until(lambda: client.acknowledged > before, lambda: "none is acknowledged")


@sentence(r"expect no answer through (\w+) for ([\d.]+)", "expect no answer through X for 5")
def expect_no_answer(story: Story, name: str, seconds: str) -> None:
    """Runs so many seconds: the client there writes, and nothing is acknowledged."""
    client = story.clients[name]
    before, tries = client.acknowledged, client.tries
    story.run(float(seconds))
    assert client.tries > tries, "it does not write any more"
    assert client.acknowledged == before, "some were acknowledged"


# -- rows


@sentence(r"expect (\S+) has all that was acknowledged", "expect X has all that was acknowledged")
def expect_all(story: Story, name: str) -> None:
    """Expect all rows that the placements assign to the node."""
    wanted = dict[Key, int]()
    for data in story.image.schema.all_data():
        placed = story.image.ring.placements[data.placement]
        for key, at in story.acknowledged_of(data.data_id).items():
            if name in placed.row_for(token_of_key(key)).writes:
                wanted[key] = at
    _expect_all_of(story, name, wanted)


@sentence(
    r"expect (\S+) has (rows|nothing) of (\S+)/(\d+)",
    "expect X has rows of m.t/0",
    "expect X:1 has nothing of m.t/0",
)
def expect_of_tablet(story: Story, place: str, what: str, table: str, tablet: str) -> None:
    """On any shard of the node, or the one that is named."""
    name, _, shard = place.partition(":")
    data = story.image.schema.serving(table)
    assert data is not None, "there is no such table"
    row = story.image.ring.placements[data.placement].rows[int(tablet)]
    cells, range_ = story.cells(name), Range(row.start, row.end)
    wanted = (data.data_id, int(shard)) if shard else None
    found = [
        k
        for k in cells
        if contains(range_, token_of_key(k))
        and (parted(k[0]) == wanted if wanted else parted(k[0])[0] == data.data_id)
    ]
    assert bool(found) == (what == "rows"), f"it has {len(found)}"


@sentence(r"expect (\S+) lacks some of (\S+)/(\d+)", "expect X lacks some of m.t/0")
def expect_lacks(story: Story, name: str, table: str, tablet: str) -> None:
    """Expect acknowledged rows of the tablet to be missing."""
    assert story.lacking(name, story.acknowledged(table, tablet)), "it lacks nothing"


@sentence(
    r"expect (\S+) has what was acknowledged of (\S+)/(\d+) before",
    "expect X has what was acknowledged of m.t/0 before",
)
def expect_repaired(story: Story, name: str, table: str, tablet: str) -> None:
    """The repair of the tablet that was asked for last."""
    _expect_all_of(story, name, story.noted[f"{table}/{tablet}"])


@sentence(r"expect (\S+) has what (\S+) had at (\S+)", "expect X has what m.t had at tag")
def expect_restored(story: Story, name: str, table: str, tag: str) -> None:
    """Expect the rows acknowledged before the request for that snapshot, of the tablets that the node has."""
    data = story.image.schema.serving(table)
    assert data is not None, "there is no such table"
    placed = story.image.ring.placements[data.placement]
    noted = {(data.data_id, key[1]): at for key, at in story.noted[tag].items()}
    mine = {k: at for k, at in noted.items() if name in placed.row_for(token_of_key(k)).reads}
    _expect_all_of(story, name, mine)


def _expect_all_of(story: Story, name: str, wanted: dict[Key, int]) -> None:
    lacking = story.lacking(name, wanted)
    assert wanted and not lacking, f"it lacks {lacking[:3]} of {len(wanted)}"


@sentence(
    r"expect (\S+) keeps (a snapshot|none)", "expect X keeps a snapshot", "expect X keeps none"
)
def expect_keeps(story: Story, name: str, what: str) -> None:
    """Runs until the node's disk has one of a table, or none."""

    def kept() -> list[str]:
        return story.world.backup_files(name)

    story.run_until(lambda: bool(kept()) == (what == "a snapshot"), lambda: f"it has {len(kept())}")


def _epoch_text(image: Image, epoch: Epoch) -> str:
    """``advance -> write_both_read_old``; the state only where the command may change it."""
    moves = epoch.command in ("advance", "rollback", "cancel")
    return f"{epoch.command} -> {states(image)}" if moves else epoch.command


def _bound(token: int) -> str:
    return "MIN" if token == MIN_TOKEN else str(token)


def _places(row: RangeReplicas, nodes: tuple[str, ...]) -> str:
    return _names(tuple(map(row.place, nodes)))


def _names(nodes: tuple[str, ...]) -> str:
    return ",".join(sorted(nodes))


def _sorted_row(text: str) -> str:
    range_, reads, _, writes = text.split(" ")
    return f"{range_} {_names(tuple(reads.split(',')))} / {_names(tuple(writes.split(',')))}"
