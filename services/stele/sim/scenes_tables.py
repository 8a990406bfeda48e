"""Scenes with tables: in some scenarios they come and go, tablets move, and strikes fall on their stages."""

from random import Random
from typing import Final

from stele.sim.profiles import Profile
from stele.sim.scenario import Action, Scenario, times

TABLES_SHARE: Final = 0.3
TABLE_KEYSPACE: Final = "music"
TABLES: Final = ("music.t1", "music.t2", "music.t3")
BEGIN_S: Final = 0.5
TABLE_EVERY_S: Final = 12.0
MIGRATE_EVERY_S: Final = 2.5
STRIKE_EVERY_S: Final = 12.0
RESIZE_EVERY_S: Final = 6.0
COLOCATED_SHARE: Final = 0.5
COLOCATED: Final = ("music.v1", "music.v2")
COLOCATE_EVERY_S: Final = 5.0
REPAIRED_SHARE: Final = 0.4
REPAIR_EVERY_S: Final = 5.0
RECOUNTED_SHARE: Final = 0.6
RECOUNT_EVERY_S: Final = 8.0
SWITCHED_SHARE: Final = 0.4
SWITCH_EVERY_S: Final = 5.0
LOADED_SHARE: Final = 0.5
LOAD_EVERY_S: Final = 6.0
RACKED_SHARE: Final = 0.4
CANCELLED_SHARE: Final = 0.4
KEPT_SHARE: Final = 0.4
KEEP_EVERY_S: Final = 6.0
STAGES: Final = (
    "allow_write_both_read_old",
    "write_both_read_old",
    *("streaming",) * 3,
    *("write_both_read_new",) * 2,
    "use_new",
    *("cleanup",) * 3,
    "end_migration",
    *("cleanup_target",) * 2,
    "revert_migration",
    "drop_table",
    "tablet_resize_finalization",
)


def with_tables(random: Random, rules: Profile, base: Scenario) -> tuple[bool, list[Action]]:
    """Whether there are any, and what is asked about them."""
    if random.random() >= TABLES_SHARE:
        return False, []
    rf = random.randrange(1, min(3, base.nodes - 1) + 1)
    found = [
        Action(BEGIN_S, "tablet_keyspace", TABLE_KEYSPACE, number=rf),
        Action(2 * BEGIN_S, "table", TABLES[0]),
    ]
    for at_s in times(random, TABLE_EVERY_S, base.duration_s):
        kind = random.choice(("table", "table", "drop_table", "truncate"))
        found.append(Action(at_s, kind, random.choice(TABLES)))
    for at_s in times(random, MIGRATE_EVERY_S, base.duration_s):
        table = random.choice((*TABLES[:1] * 3, *TABLES[1:]))
        found.append(Action(at_s, "migrate", table, number=random.randrange(1000)))
        if random.random() < 0.2:
            later_s = round(at_s + 3 * random.random(), 3)
            found.append(
                Action(min(later_s, base.duration_s), "cancel", number=random.randrange(8))
            )
    return True, found + _strikes(random, rules, base)


def resizes(random: Random, base: Scenario) -> list[Action]:
    """Tables get more tablets, or fewer, which the balancer may undo."""
    if not base.tables:
        return []
    return [
        Action(at_s, "resize", random.choice(TABLES), number=random.randrange(3))
        for at_s in times(random, RESIZE_EVERY_S, base.duration_s)
    ]


def recounts(random: Random, base: Scenario) -> list[Action]:
    """The keyspace of the tables gets other replications, of which some are cancelled again."""
    if not base.tables or random.random() >= RECOUNTED_SHARE:
        return []
    found = list[Action]()
    for at_s in times(random, RECOUNT_EVERY_S, base.duration_s):
        found.append(Action(at_s, "alter", TABLE_KEYSPACE, number=random.randrange(1, 4)))
        if random.random() < CANCELLED_SHARE:
            later_s = min(round(at_s + 4 * random.random(), 3), base.duration_s)
            found.append(Action(later_s, "cancel", number=random.randrange(8)))
    return found


def colocated(random: Random, base: Scenario) -> list[Action]:
    """Tables come that have the tablets of others, whatever these do, and are used as these are."""
    if not base.tables or random.random() >= COLOCATED_SHARE:
        return []
    found = [Action(base.duration_s, "switch_on", table) for table in COLOCATED]
    kinds = (
        *("colocated_table",) * 3,
        *("drop_table", "truncate", "migrate", "resize", "repair"),
        *("load", "switch_off", "switch_on"),
    )
    for at_s in times(random, COLOCATE_EVERY_S, base.duration_s):
        kind, table = random.choice(kinds), random.choice(COLOCATED)
        number, of = random.randrange(1 << 20), random.choice((*TABLES[:1] * 3, *TABLES))
        text = of if kind == "colocated_table" else ""
        found.append(Action(at_s, kind, table, number=number, text=text))
    return found


def rack_lists(random: Random, base: Scenario) -> list[Action]:
    """The keyspace of the tables names the racks that have a copy each, now these and now others."""
    if not base.tables or random.random() >= RACKED_SHARE:
        return []
    found, racks = list[Action](), [f"r{number + 1}" for number in range(base.racks)]
    for at_s in times(random, RECOUNT_EVERY_S, base.duration_s):
        named = random.sample(racks, random.randrange(len(racks)) + 1)
        found.append(Action(at_s, "alter", TABLE_KEYSPACE, text=",".join(named)))
        if random.random() < CANCELLED_SHARE:
            later_s = min(round(at_s + 4 * random.random(), 3), base.duration_s)
            found.append(Action(later_s, "cancel", number=random.randrange(8)))
    return found


def repairs(random: Random, base: Scenario) -> list[Action]:
    """Tables, and some of their tablets, are repaired; some repairs are cancelled, or somebody crashes."""
    if not base.tables or random.random() >= REPAIRED_SHARE:
        return []
    found = list[Action]()
    for at_s in times(random, REPAIR_EVERY_S, base.duration_s):
        number = random.randrange(1000)
        found.append(Action(at_s, "repair", random.choice(TABLES), number=number))
        if random.random() < CANCELLED_SHARE:
            later_s = min(round(at_s + 2 * random.random(), 3), base.duration_s)
            found.append(Action(later_s, "cancel", number=random.randrange(8)))
        elif random.random() < CANCELLED_SHARE:
            who = random.choice(("coordinator", "member"))
            found.append(Action(at_s, "crash_on", who, 2.0, number % 5, "repair"))
    return found


def switches(random: Random, base: Scenario) -> list[Action]:
    """Balancing is switched off and on, of some scope."""
    if not base.tables or random.random() >= SWITCHED_SHARE:
        return []
    scopes = ("", TABLE_KEYSPACE, *TABLES)
    found = list[Action]()
    for at_s in times(random, SWITCH_EVERY_S, base.duration_s):
        kind = random.choice(("switch_off", "switch_off", "switch_on"))
        found.append(Action(at_s, kind, random.choice(scopes), number=random.randrange(4)))
    return found


def loads(random: Random, base: Scenario) -> list[Action]:
    """Tables grow and shrink, and get hot spots."""
    if not base.tables or random.random() >= LOADED_SHARE:
        return []
    return [
        Action(at_s, "load", random.choice(TABLES), number=random.randrange(1 << 20))
        for at_s in times(random, LOAD_EVERY_S, base.duration_s)
    ]


def snapshots(random: Random, base: Scenario) -> list[Action]:
    """Snapshots of tables are taken and restored; some are cancelled, or somebody crashes meanwhile."""
    if not base.tables or random.random() >= KEPT_SHARE:
        return []
    found = list[Action]()
    for at_s in times(random, KEEP_EVERY_S, base.duration_s):
        kind, table = random.choice(("snapshot", "restore")), random.choice(TABLES)
        found.append(Action(at_s, kind, table, number=random.randrange(1000)))
        if random.random() < CANCELLED_SHARE / 2:
            later_s = min(round(at_s + 3 * random.random(), 3), base.duration_s)
            found.append(Action(later_s, "cancel", number=random.randrange(8)))
        elif random.random() < CANCELLED_SHARE:
            who, stage = (
                random.choice(("coordinator", "member")),
                random.choice(("snapshot", "restore")),
            )
            found.append(Action(at_s, "crash_on", who, 2.0, random.randrange(5), stage))
    return found


def _strikes(random: Random, rules: Profile, base: Scenario) -> list[Action]:
    """Somebody crashes, stands still or hears nothing of the log when a tablet comes to a stage."""
    found = list[Action]()
    for at_s in times(random, STRIKE_EVERY_S if rules.longest_s else 0, base.duration_s):
        kind = random.choice(("crash_on", "pause_on", "cut_on"))
        who = random.choice(("coordinator", "member", "member", "member"))
        seconds = round(0.1 + rules.longest_s * random.random() ** 2, 3)
        stage, number = random.choice(STAGES), random.randrange(5)
        found.append(Action(at_s, kind, who, seconds, number, stage))
    return found
