"""A snapshot is the image, with the same bytes on every replica. A damaged one is not used."""

import contextlib
import io
from pathlib import Path
from random import Random
from typing import cast

import pytest

from stele.domain.evolve import apply_facts
from stele.domain.image import Image, without_memory
from stele.domain.model.features import FeaturesEnabled
from stele.domain.model.schema import Table, TableChanged
from stele.domain.request_memory import to_facts
from stele.domain.snapshot import requests_hash, state_hash
from stele.log.archive.archive import SNAPSHOTS, Archive, archived
from stele.log.archive.container import Container, DamagedFileError
from stele.log.archive.snapshots import Kept, Snapshots, UnreadableSnapshotError, head_of, start_of
from stele.log.chain import Anchor, digest_of
from stele.log.codec import encode_epoch
from stele.log.fold import BEGINNING
from stele.log.record_builder import MAX_RECORD_BYTES
from stele_simulator.processes.disk import Disk
from stele_simulator.processes.event_loop import Died
from tests.domain.epochs import History as Story
from tests.log.archive.story import long_story

TABLES = 35_000
ANCHOR = Anchor(41, digest_of(b"the last winner"))


@pytest.fixture(scope="module")
def story() -> Story:
    return long_story()


def keep(folder: Path, image: Image, anchor: Anchor = ANCHOR) -> Kept:
    head = head_of(image, anchor.offset + 1, anchor, 1_700_000_000_000)
    return Snapshots(folder).write(image, head, to_facts(image.decided))


def test_snapshot_file_restores_the_image(tmp_path: Path, story: Story) -> None:
    for image in story.images[1::9]:
        kept = keep(tmp_path, image)
        start = Snapshots(tmp_path).start(kept, decided=False)
        assert start is not None
        assert start.image == without_memory(image)
        assert (start.next_offset, start.anchor) == (42, ANCHOR)


def test_archive_gives_the_states_at_the_ends_of_its_spans(tmp_path: Path, story: Story) -> None:
    """Replicas compare their histories at these epochs, whatever holes their archives have."""
    archive = Archive(tmp_path)
    records = [archived(e.epoch - 1, encode_epoch(e), e) for e in story.epochs]
    for first, last in ((1, 6), (21, 30), (41, 80)):
        archive.segments.adopt(records[first - 1 : last])
    told = {1, 5, 6, 20, 21, 29, 30, 77, 78, 79, 80}
    assert archive.states(3) == {epoch: story.images[epoch].state_id for epoch in told}
    assert archive.states(100).keys() == told | {*range(40, 77)}
    path = next((tmp_path / "segments").glob("*21-*.avro"))
    path.write_bytes(path.read_bytes()[:-40])
    archive = Archive(tmp_path)
    assert archive.states(3).keys() == told - {20, 21, 29, 30}
    assert archive.damaged


def test_large_snapshot_is_written_and_read_in_parts(tmp_path: Path, story: Story) -> None:
    """Cassandra's snapshots stop silently at 31,000 tables, the most that one of its messages holds."""
    keyspace_id = next(iter(story.image.schema.by_id))
    tables = [
        TableChanged(
            Table(table_id=f"{at:032x}", keyspace_id=keyspace_id, name="t" * 240 + str(at))
        )
        for at in range(TABLES)
    ]
    assert sum(len(each.table.name) for each in tables) > MAX_RECORD_BYTES
    image = apply_facts(story.image, tables)
    kept = keep(tmp_path, image)
    with kept.path.open("rb") as file:
        blocks = [*Container(file, "SnapshotPart").blocks()]
    assert len(blocks) > 1
    start = Snapshots(tmp_path).start(kept, decided=False)
    assert start is not None
    assert start.image == without_memory(image)
    assert len(start.image.schema.tables) >= TABLES


def test_snapshot_with_an_unsupported_feature_is_kept_and_not_read(
    tmp_path: Path, story: Story
) -> None:
    kept = keep(tmp_path / SNAPSHOTS, apply_facts(story.image, [FeaturesEnabled(("tablets_v9",))]))
    newer = Archive(tmp_path, supported=frozenset({"tablets_v9"})).snapshots
    older = Archive(tmp_path, supported=frozenset()).snapshots
    with pytest.raises(UnreadableSnapshotError, match=r"needs tablets_v9, .* Upgrade"):
        older.start(kept, decided=True)
    assert newer.start(kept, decided=True) is not None


def test_replicas_write_identical_snapshot_files(tmp_path: Path, story: Story) -> None:
    one, two = keep(tmp_path / "one", story.image), keep(tmp_path / "two", story.image)
    assert one.path.read_bytes() == two.path.read_bytes()
    assert one.decided_path.read_bytes() == two.decided_path.read_bytes()
    assert one.hash == two.hash != ""


def test_damaged_snapshot_is_set_aside_and_an_older_one_is_used(
    tmp_path: Path, story: Story
) -> None:
    archive = Archive(tmp_path)
    folder = tmp_path / "snapshots"
    older, newer = keep(folder, story.images[20]), keep(folder, story.images[30])
    content = bytearray(newer.path.read_bytes())
    content[len(content) // 2] ^= 1
    newer.path.write_bytes(content)
    archive = Archive(tmp_path)
    start, kept = archive.begin(decided=True)
    assert kept is not None
    assert kept.head == older.head
    assert start.image.epoch == 20
    assert len(archive.damaged) == 1
    assert not newer.path.exists()


def test_snapshot_deleted_while_in_use_is_not_reported_as_damaged(
    tmp_path: Path, story: Story
) -> None:
    """One thread deletes snapshots while others list them."""
    snapshots = Snapshots(tmp_path)
    head = keep(tmp_path / "other", story.images[20]).head
    kept = snapshots.write(story.images[20], head, ())
    snapshots.forget(kept)
    assert kept.size_bytes > 0
    assert kept.decided_bytes > 0
    assert snapshots.start(kept, decided=True) is None
    assert snapshots.checked(kept) is None
    assert snapshots.damaged == []
    assert snapshots.all() == []


def test_externally_deleted_snapshot_is_no_longer_listed(tmp_path: Path, story: Story) -> None:
    keep(tmp_path, story.images[20])
    keep(tmp_path, story.images[30])
    snapshots = Snapshots(tmp_path)
    older, newer = snapshots.all()[::-1]
    assert snapshots.forget_deleted() == 0
    newer.path.unlink()
    assert snapshots.forget_deleted() == 1
    assert snapshots.all() == [older]
    assert "it was deleted" in snapshots.damaged[0]
    older.decided_path.unlink()
    assert snapshots.forget_deleted() == 1
    assert snapshots.all() == []


def test_renamed_snapshot_file_is_set_aside(tmp_path: Path, story: Story) -> None:
    kept = keep(tmp_path, story.images[20])
    renamed = kept.path.with_name("another.avro")
    kept.path.rename(renamed)
    found = Snapshots(tmp_path)
    assert found.all() == []
    assert len(found.damaged) == 1
    assert "by another name" in found.damaged[0]


def test_torn_snapshots_are_detected(tmp_path: Path, story: Story) -> None:
    kept = keep(tmp_path, story.image)
    whole = kept.path.read_bytes()
    for size in range(0, len(whole), 503):
        with pytest.raises(DamagedFileError):
            start_of(io.BytesIO(whole[:size]))


def test_changed_bytes_of_a_snapshot_never_yield_another_image(
    tmp_path: Path, story: Story
) -> None:
    kept = keep(tmp_path, story.images[12])
    whole = bytearray(kept.path.read_bytes())
    image = start_of(io.BytesIO(whole)).image
    for at in range(0, len(whole), 41):
        whole[at] ^= 0x21
        with contextlib.suppress(DamagedFileError):
            assert start_of(io.BytesIO(whole)).image == image
        whole[at] ^= 0x21


def test_decided_requests_of_another_snapshot_are_refused(tmp_path: Path, story: Story) -> None:
    one, two = keep(tmp_path, story.images[20]), keep(tmp_path, story.images[30])
    with pytest.raises(DamagedFileError, match="another snapshot"):
        start_of(one.path.open("rb"), two.decided_path.open("rb"))


def test_snapshot_and_tail_equal_a_full_replay(tmp_path: Path, story: Story) -> None:
    """Invariant I8, through files."""
    archive = Archive(tmp_path)
    for epoch in story.epochs:
        value = encode_epoch(epoch)
        archive.segments.add(archived(2 * epoch.epoch, value, epoch))
        if epoch.epoch == 25:
            anchor = Anchor(2 * epoch.epoch, digest_of(value))
            head = head_of(story.images[25], anchor.offset + 1, anchor, epoch.at_ms)
            archive.snapshots.write(story.images[25], head, to_facts(story.images[25].decided))
    archive.segments.seal()
    archive = Archive(tmp_path)
    start, kept = archive.begin(decided=True)
    assert kept is not None
    again = archive.fold_on(start, archive.segments.last)
    replayed = archive.fold_on(BEGINNING, archive.segments.last)
    assert state_hash(again.image) == state_hash(replayed.image) == state_hash(story.image)
    assert again.anchor == replayed.anchor
    assert again.next_offset == replayed.next_offset == 2 * story.image.epoch + 1


def test_snapshot_restores_the_memory_of_decided_requests(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    story = long_story()
    for epoch in story.epochs:
        archive.segments.add(archived(epoch.epoch, encode_epoch(epoch), epoch))
    archive.segments.sync()
    whole = archive.fold_on(BEGINNING, story.image.epoch)
    assert whole.anchor is not None
    head = head_of(whole.image, whole.next_offset, whole.anchor, 1)
    kept = archive.snapshots.write(whole.image, head, to_facts(whole.image.decided))
    start = archive.snapshots.start(kept, decided=True)
    assert start is not None
    assert requests_hash(start.image) == requests_hash(whole.image)
    without = archive.snapshots.start(kept, decided=False)
    assert without is not None
    assert without.image.decided is None


def test_only_a_whole_snapshot_of_another_replica_is_adopted(tmp_path: Path, story: Story) -> None:
    kept = keep(tmp_path / "one", story.image)
    image, decided = kept.path.read_bytes(), kept.decided_path.read_bytes()
    other = Snapshots(tmp_path / "two")
    for flawed in ((image[:-5], decided), (image, decided[:-5]), (image, b""), (b"", decided)):
        with pytest.raises(DamagedFileError):
            other.adopt(*flawed)
    assert other.all() == []
    adopted = other.adopt(image, decided)
    assert adopted.hash == kept.hash
    assert Snapshots(tmp_path / "two").all()[0].head == kept.head


def test_archive_knows_the_state_id_of_each_epoch(tmp_path: Path, story: Story) -> None:
    archive = Archive(tmp_path)
    for epoch in story.epochs:
        archive.segments.add(archived(epoch.epoch, encode_epoch(epoch), epoch))
    archive.segments.sync()
    assert archive.state_id_of(17) == story.images[17].state_id
    assert archive.state_id_of(story.image.epoch + 1) is None


def test_state_id_of_a_missing_epoch_is_unknown(tmp_path: Path, story: Story) -> None:
    keep(tmp_path / SNAPSHOTS, story.images[20])
    archive = Archive(tmp_path)
    for epoch in story.epochs[30:]:
        archive.segments.add(archived(epoch.epoch, encode_epoch(epoch), epoch))
    archive.segments.sync()
    states = [image.state_id for image in story.images]
    assert [archive.state_id_of(at) for at in (19, 20, 21, 30)] == [None, states[20], None, None]
    known = [archive.state_before(at) for at in (20, 21, 22, 31)]
    assert known == [None, states[20], None, states[30]]


@pytest.mark.parametrize("power", [False, True], ids=["killed", "without power"])
def test_adopted_snapshot_is_whole_or_absent_after_a_crash(
    power: bool, tmp_path: Path, story: Story
) -> None:
    """The replica dies at each of its writes. A snapshot that it offers afterwards equals the adopted one."""
    kept = keep(tmp_path, story.image)
    files, operation = (kept.path.read_bytes(), kept.decided_path.read_bytes()), 0
    while True:
        disk = Disk(Random(operation).random)
        disk.trap = operation
        with contextlib.suppress(Died):
            Snapshots(cast(Path, disk.plug().path("/snapshots"))).adopt(*files)
        if disk.trap >= 0:
            break
        disk.trap = -1
        if power:
            disk.lose_power()
        for found in Snapshots(cast(Path, disk.plug().path("/snapshots"))).all():
            assert (found.path.read_bytes(), found.decided_path.read_bytes()) == files
        operation += 1
    assert operation > 5


@pytest.mark.parametrize("power", [False, True], ids=["killed", "without power"])
def test_snapshots_of_epochs_that_were_given_up_stay_set_aside(power: bool) -> None:
    """After two recoveries, epochs 40 and 46 belong to logs that were given up, and epoch 70 does not."""
    story = long_story()
    story.recover(bytes([0xB0] * 16), 45)
    grown = [story.images[30], story.images[40], story.images[46]]
    later = long_story()
    later.recover(bytes([0xC0] * 16), 69)
    disk = Disk(lambda: 0.4)
    archive = Archive(cast(Path, disk.plug().path("/data")))
    for image in (*grown, later.images[70]):
        keep(cast(Path, disk.plug().path(f"/data/{SNAPSHOTS}")), image)
    archive = Archive(cast(Path, disk.plug().path("/data")))
    archive.set_aside_after(35, story.image.log_id.hex())
    if power:
        disk.lose_power()
    archive = Archive(cast(Path, disk.plug().path("/data")))
    assert [each.head.epoch for each in archive.snapshots.all()] == [70, 30]
