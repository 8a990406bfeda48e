"""Random logs as brokers hold them: winners, losers of competing writers, records that came twice."""

import random
from collections.abc import Iterator
from functools import cache
from itertools import count

from stele.domain.commands import CreateKeyspace, DropKeyspace, Envelope, Leave, Noop
from stele.domain.image import EMPTY, Image
from stele.log.codec import encode_epoch
from stele.log.fold import Fold
from stele.log.pipeline import CommitPipeline, Ids
from stele.log.state_ids import next_state_id
from tests.domain.history import join, three_nodes

NOW_MS = 1_700_000_000_000
KEYSPACES = {"a": {"dc1": 1}, "b": {"dc1": 2}, "c": {"dc1": 3}}


@cache
def random_log(seed: int, contended: int = 40) -> tuple[bytes, ...]:
    """Nodes join and leave, so placements split and merge; then two writers fight."""
    chance = random.Random(seed)
    history, driver = three_nodes()
    history.apply(join(4, "r1"))
    driver.run()
    history.apply(Leave("n2" if seed % 2 else "n1"))
    driver.run()
    log = [encode_epoch(epoch) for epoch in history.epochs]
    log = list(_with_repeats(log, chance))
    log.extend(_fight(log, contended, chance))
    return tuple(log)


def images(log: tuple[bytes, ...]) -> list[Image]:
    """The image at every epoch, by the fold of the services."""
    fold, found = Fold(), [EMPTY]
    for offset, value in enumerate(log):
        if fold.offer(offset, value) is not None:
            found.append(fold.image)
    return found


def losers(log: tuple[bytes, ...]) -> int:
    return len(log) - (len(images(log)) - 1)


def _with_repeats(log: list[bytes], chance: random.Random) -> Iterator[bytes]:
    for index, value in enumerate(log):
        yield value
        if chance.random() < 0.1:
            yield log[chance.randrange(index + 1)]


def _fight(log: list[bytes], commands: int, chance: random.Random) -> list[bytes]:
    """Two pipelines that read late and whose records arrive in any interleaving."""
    ids = count(1)
    more: list[bytes] = []
    outboxes: tuple[list[bytes], list[bytes]] = ([], [])
    writers = [_writer(log, box, chance, ids) for box in outboxes]
    seen = [0, 0]
    for _ in range(commands):
        which = chance.randrange(2)
        name = chance.choice(sorted(KEYSPACES))
        command = chance.choice([CreateKeyspace(name, KEYSPACES[name]), DropKeyspace(name), Noop()])
        writers[which].submit(
            Envelope(request_id=f"fight-{next(ids)}", command=command), lambda _: None
        )
        box = outboxes[chance.randrange(2)]
        while box and chance.random() < 0.7:
            more.append(box.pop(0))
        which = chance.randrange(2)
        for value in more[seen[which] :]:
            writers[which].on_record(len(log) + seen[which], value)
            seen[which] += 1
    return [*more, *outboxes[0], *outboxes[1]]


def _writer(
    log: list[bytes], box: list[bytes], chance: random.Random, ids: Iterator[int]
) -> CommitPipeline:
    fold = Fold()
    for offset, value in enumerate(log):
        fold.offer(offset, value)
    return CommitPipeline(
        fold,
        box.append,
        Ids(
            next_state_id=lambda last: next_state_id(last, NOW_MS, chance.getrandbits(74)),
            request_id=lambda: f"noop-{next(ids)}",
            now_ms=lambda: NOW_MS,
        ),
    )
