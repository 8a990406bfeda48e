"""Two writers change the schema at once: the log orders them, and one of them is refused.

The four races are those of CEP-21, "Schema Management".
"""

import pytest

from stele.domain.model import schema as c
from tests.domain.schema.examples import alter, cluster, column, function, table, user_type

PLUS = function("plus", "int", "int", "int")
TOTAL = c.AggregateCreation(
    name="library.total", argument_types=("int",), state_function="plus", state_type="int"
)
SONGS = table("songs", column("artist", "text"))
BY_ARTIST = c.ViewCreation(
    name="library.by_artist",
    base="library.songs",
    partition_key=("artist",),
    clustering=(c.ViewKey("id"),),
    where=(c.ViewCondition("artist"), c.ViewCondition("id")),
)
ADDRESS = user_type("address", street="text")

RACES: dict[str, tuple[c.AnyChange, c.AnyChange, c.AnyChange | None, str, str]] = {
    "drop_type_and_create_table": (
        c.TypeRemoval(name="library.address"),
        table("people", column("home", "address")),
        ADDRESS,
        "unknown_type",
        "type_in_use",
    ),
    "drop_function_and_create_aggregate": (
        c.FunctionRemoval(name="library.plus"),
        TOTAL,
        PLUS,
        "unknown_function",
        "function_in_use",
    ),
    "drop_table_and_create_view": (
        c.TableRemoval(name="library.songs"),
        BY_ARTIST,
        SONGS,
        "table_being_dropped",
        "has_views",
    ),
    "two_create_table": (SONGS, table("songs"), None, "table_exists", "table_exists"),
}
"""By name: two changes, the schema before them, and the rejection of the one that comes second."""


@pytest.mark.parametrize("turned", [False, True], ids=["first", "second"])
@pytest.mark.parametrize("race", RACES)
def test_second_of_two_racing_writers_is_refused(race: str, turned: bool) -> None:
    one, other, before, refusal_of_other, refusal_of_one = RACES[race]
    world = cluster()
    if before is not None:
        assert alter(world, before) is None
    first, second = (other, one) if turned else (one, other)
    assert alter(world, first) is None
    refused = alter(world, second)
    assert refused is not None
    assert refused.code == (refusal_of_one if turned else refusal_of_other)


def test_table_created_twice_has_one_id() -> None:
    world = cluster()
    assert alter(world, SONGS) is None
    assert alter(world, table("songs", if_not_exists=True)) is None
    assert len(world.image.schema.tables) == 1
