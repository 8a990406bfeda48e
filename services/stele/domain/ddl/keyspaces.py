"""Creation of keyspaces.

Dropping and changing replication are operations (``topology/operations``).
"""

from stele.domain.base import Rejection, required
from stele.domain.context import Context, Decision, bad_name
from stele.domain.image import Image
from stele.domain.model.schema import (
    CreateKeyspace,
    Keyspace,
    KeyspaceChanged,
    Replication,
    placement_name,
)
from stele.domain.ring.placement import Placement
from stele.domain.ring.quorum import blocks
from stele.domain.rules.ring import ring_now
from stele.domain.rules.schema import (
    accepted_drops,
    check_keyspace_stands,
    name_is_taken,
    replication_for,
)
from stele.domain.tablets.maps import MAX_TABLETS
from stele.domain.topology.planning import new_placement


def create_keyspace(context: Context, command: CreateKeyspace) -> Decision:
    """Create a keyspace with a new id, even if the name was used before.

    It creates no new version, because no client routes by the keyspace yet.
    """
    image = context.image
    required(_check_command(image, command))
    wanted = required(replication_for(image, command, tablets=command.tablets))
    if command.tablets:
        return _with_tablets(context, command, wanted)
    replication = {**wanted.copies}
    placement = placement_name(replication)
    keyspace = KeyspaceChanged(
        Keyspace(
            keyspace_id=context.unique(f"keyspace {command.name}"),
            name=command.name,
            replication=replication,
            placement=placement,
        )
    )
    there = image.ring.placements.get(placement)
    required(
        _check_can_be_written(
            image, ring_now(image).placement(replication) if there is None else there
        )
    )
    # Keyspaces of equal replication share a placement.
    if there is not None:
        return (keyspace,)
    facts = new_placement(image, placement, replication)
    return facts if isinstance(facts, Rejection) else (keyspace, *facts)


def _check_command(image: Image, command: CreateKeyspace) -> Rejection | None:
    known = image.schema.named(command.name)
    required(bad_name("keyspace", command.name, dots=False))
    if known is not None:
        required(check_keyspace_stands(known, accepted_drops(image)))
        return name_is_taken("keyspace", command.name)
    if command.tablets or not command.initial_tablets:
        return None
    return Rejection(
        "bad_tablets",
        "initial_tablets is for keyspaces with tablets.",
        "Ask for tablets too, or leave it out.",
    )


def _with_tablets(context: Context, command: CreateKeyspace, wanted: Replication) -> Decision:
    """Create a keyspace with tablets. Its tables have placements, and it has none."""
    if not 0 <= command.initial_tablets <= MAX_TABLETS:
        return Rejection(
            "bad_tablets",
            f"A table cannot begin with {command.initial_tablets} tablets.",
            f"Ask for 1 to {MAX_TABLETS}; or for 0, and it gets what its replicas ask for.",
        )
    keyspace = Keyspace(
        keyspace_id=context.unique(f"keyspace {command.name}"),
        name=command.name,
        replication={**wanted.copies},
        placement="",
        tablets=True,
        initial_tablets=command.initial_tablets,
        racks={**wanted.racks},
    )
    return (KeyspaceChanged(keyspace),)


def _check_can_be_written(image: Image, placement: Placement) -> Rejection | None:
    """Require that each range has a quorum of nodes that are not excluded."""
    excluded = image.membership.excluded()
    rows = placement.rows if excluded else ()
    dead = {n for row in rows if blocks(excluded, {*row.reads}) for n in row.reads} & excluded
    if not dead:
        return None
    names = ", ".join(sorted(dead))
    return Rejection(
        "dead_replicas",
        f"Some of its ranges could not be written: {names} would have them, and is declared dead.",
        f"Remove or replace {names} first.",
        {"dead": names},
    )
