"""Segments keep every epoch after crashes and disk damage."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest
from fastavro import reader as avro_reader
from hypothesis import given, settings
from hypothesis import strategies as st

from stele.log.archive.container import (
    SCHEMA,
    Archived,
    Container,
    DamagedFileError,
    EpochSpan,
    NotArchivedError,
)
from stele.log.archive.segments import SegmentLimits, Segments, up_to
from stele.log.codec import encode_epoch
from stele_simulator.processes.disk import Disk
from tests.domain.epochs import History as Story
from tests.log.archive.story import long_story

SMALL = SegmentLimits(epochs=25, size_bytes=1 << 20)


@pytest.fixture(scope="module")
def records() -> list[Archived]:
    story = long_story()
    return of_story(story)


def of_story(story: Story) -> list[Archived]:
    """Return the story's records, with a hole in the offsets after every third."""
    return [
        Archived(e.epoch, e.epoch + e.epoch // 3, e.at_ms, encode_epoch(e)) for e in story.epochs
    ]


def kept(folder: Path, records: list[Archived], every: int = 4) -> Segments:
    """Return segments with these records, synced after each ``every``."""
    segments = Segments(folder, SMALL)
    for record in records:
        segments.add(record)
        if record.epoch % every == 0:
            segments.sync()
    segments.sync()
    return segments


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.avro"))


def test_read_returns_synced_epochs_from_any_first_epoch(
    tmp_path: Path, records: list[Archived]
) -> None:
    segments = kept(tmp_path, records)
    assert segments.last == len(records) > 2 * SMALL.epochs
    for first in range(1, len(records) + 1):
        assert [*segments.read(first)] == records[first - 1 :]
    assert [*segments.read(len(records) + 1)] == []


def test_any_avro_library_reads_a_segment(tmp_path: Path, records: list[Archived]) -> None:
    kept(tmp_path, records).seal()
    found = [r for path in files(tmp_path) for r in avro_reader(path.open("rb"))]
    assert [r["value"] for r in found] == [r.value for r in records]


def test_last_epoch_counts_only_synced_records(tmp_path: Path, records: list[Archived]) -> None:
    segments = Segments(tmp_path, SMALL)
    for record in records[:10]:
        segments.add(record)
    assert segments.last == 0
    assert segments.sync() == 10


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_crash_keeps_all_synced_records(
    tmp_path_factory: pytest.TempPathFactory, records: list[Archived], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("crash")
    segments = Segments(folder, SMALL)
    synced = 0
    for record in records[: data.draw(st.integers(1, len(records)))]:
        segments.add(record)
        if data.draw(st.integers(0, 3)) == 0:
            synced = segments.sync()
    for opened in folder.glob("*-open.avro"):  # a part of the next block
        with opened.open("ab") as file:
            file.write(data.draw(st.binary(max_size=40)))
    again = Segments(folder, SMALL)
    assert again.last == synced
    assert [*again.read(1)] == records[:synced]
    for record in records[synced:]:
        again.add(record)
    again.seal()
    assert [*Segments(folder, SMALL).read(1)] == records


def test_damage_inside_an_open_segment_is_not_its_end(
    tmp_path: Path, records: list[Archived]
) -> None:
    """A crash tears only the last block. Blocks behind damage were on the disk, and are kept."""
    whole = records[:24]
    kept(tmp_path / "whole", whole)
    (opened,) = files(tmp_path / "whole")
    content = opened.read_bytes()
    with opened.open("rb") as file:
        blocks = [*Container(file, SCHEMA).blocks()]
    begin, end = blocks[1].begin, blocks[1].end
    for at in (*range(begin, begin + 9), *range(begin + 9, end, 97), *range(end - 18, end)):
        folder = tmp_path / f"{at}"
        folder.mkdir()
        (folder / opened.name).write_bytes(
            content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :]
        )
        segments = Segments(folder, SMALL)
        if not segments.damaged:  # some bits of zstd's own headers do not matter
            assert [*segments.read(1)] == whole, f"byte {at}"
            continue
        assert (folder / f"{opened.name}.damaged").stat().st_size == len(content)
        assert segments.spans() in (
            [EpochSpan(1, 4), EpochSpan(9, 24)],
            [EpochSpan(1, 4), EpochSpan(13, 24)],
        )


def test_damaged_bytes_are_detected(tmp_path: Path, records: list[Archived]) -> None:
    kept(tmp_path, records).seal()
    Segments(tmp_path, SMALL)
    path = files(tmp_path)[0]
    content = bytearray(path.read_bytes())
    for at in range(200, len(content), 97):
        content[at] ^= 0x10
        path.write_bytes(content)
        try:
            found = [*Segments(tmp_path, SMALL).read(1)]
        except (DamagedFileError, NotArchivedError):
            found = []
        assert found in ([], records)
        content[at] ^= 0x10


def test_nothing_is_read_across_a_gap(tmp_path: Path, records: list[Archived]) -> None:
    segments = Segments(tmp_path, SMALL)
    segments.adopt(records[:10])
    segments.adopt(records[20:30])
    assert segments.spans() == [EpochSpan(1, 10), EpochSpan(21, 30)]
    assert [r.epoch for r in segments.read(5)] == [5, 6, 7, 8, 9, 10]
    with pytest.raises(NotArchivedError):
        next(segments.read(11))
    assert (segments.first, segments.last) == (21, 30)
    segments.adopt(records[8:22])
    assert segments.spans() == [EpochSpan(1, 30)]
    assert [*segments.read(1)] == records[:30]


def test_adopt_refuses_epochs_that_do_not_follow_one_another(
    tmp_path: Path, records: list[Archived]
) -> None:
    segments = Segments(tmp_path, SMALL)
    with pytest.raises(DamagedFileError):
        segments.adopt([records[0], records[2]])
    other = records[1]._replace(value=records[1].value[:10] + bytes(16) + records[1].value[26:])
    with pytest.raises(DamagedFileError):
        segments.adopt([records[0], other])
    with pytest.raises(ValueError, match="no epochs"):
        segments.adopt([])
    assert segments.spans() == []
    assert files(tmp_path) == []


def test_an_epoch_is_found_by_its_time(tmp_path: Path, records: list[Archived]) -> None:
    timed = [r._replace(at_ms=1000 + 10 * r.epoch) for r in records]
    segments = kept(tmp_path, timed)
    for epoch in range(1, len(timed) + 1, 7):
        assert segments.at_time(1000 + 10 * epoch) == epoch
        assert segments.at_time(1000 + 10 * epoch - 5) == epoch
    assert segments.at_time(10**9) == len(timed) + 1


@pytest.mark.parametrize(
    ("aside", "left"),
    [
        (EpochSpan(31, 40), [EpochSpan(1, 30), EpochSpan(41, 80)]),
        (EpochSpan(61, 1 << 62), [EpochSpan(1, 60)]),
    ],
)
def test_epochs_that_were_set_aside_stay_so_after_power_loss(
    aside: EpochSpan, left: list[EpochSpan], records: list[Archived]
) -> None:
    disk = Disk(lambda: 0.4)
    segments = kept(cast(Path, disk.plug().path("/segments")), records)
    assert segments.set_aside(aside) == min(aside.last, 80) - aside.first + 1
    for _ in range(2):
        assert segments.spans() == left
        assert all([*segments.read(each.first)][-1].epoch == each.last for each in left)
        disk.lose_power()
        segments = Segments(cast(Path, disk.plug().path("/segments")), SMALL)


@pytest.mark.parametrize("where", ["a folder", "a simulated disk"])
def test_setting_epochs_aside_again_keeps_the_earlier_files(
    tmp_path: Path, records: list[Archived], where: str
) -> None:
    """Unclean elections rolled back the same epochs of three histories. Each may still be needed."""
    disk = Disk(lambda: 0.4)
    folder = tmp_path if where == "a folder" else cast(Path, disk.plug().path("/segments"))
    histories = [records, *(of_story(long_story(forked)) for forked in (30, 40))]
    for history in histories:
        segments = Segments(folder)
        segments.adopt(history[:20])
        segments.adopt(history[20:])
        assert segments.set_aside(EpochSpan(21, 1 << 62)) == len(history) - 20
    segments = Segments(folder)
    assert segments.spans() == [EpochSpan(1, 20)]
    lost = [up_to(each, each.first, each.last) for each in segments.lost()]
    assert len(lost) == len(histories)
    assert all(history[20:] in lost for history in histories)
    names = [path.name.lstrip("0") for path in sorted(folder.glob("*.lost"))]
    assert names == [f"21-{80:020}{number}.avro.lost" for number in (".2", ".3", "")]


def test_second_damaged_file_does_not_replace_the_first(
    tmp_path: Path, records: list[Archived]
) -> None:
    for _ in range(2):
        segments = Segments(tmp_path)
        path = tmp_path / f"{1:020}-{20:020}.avro"
        segments.adopt(records[:20])
        path.write_bytes(path.read_bytes()[:-40])
        with pytest.raises(DamagedFileError):
            [*segments.read(1)]
    assert len([*tmp_path.glob("*.damaged")]) == 2


def test_externally_deleted_segment_is_reported_missing(
    tmp_path: Path, records: list[Archived]
) -> None:
    """Reports show what is on the disk."""
    segments = kept(tmp_path, records[:-1])
    end = len(records) - 1
    assert segments.spans() == [EpochSpan(1, end)]
    one, *_, last = files(tmp_path)
    one.unlink()
    with pytest.raises(DamagedFileError, match="was deleted"):
        next(segments.read(1))
    assert segments.spans() == [EpochSpan(first_epoch_after(one), end)]
    assert "it was deleted" in segments.damaged[0]
    second = files(tmp_path)[0]
    second.unlink()
    assert segments.forget_deleted() == 1
    assert segments.spans() == [EpochSpan(first_epoch_after(second), end)]
    assert segments.forget_deleted() == 0
    last.unlink()
    segments.add(records[-1])
    with pytest.raises(FileNotFoundError, match="while it was written to"):
        segments.sync()


def first_epoch_after(sealed: Path) -> int:
    return int(sealed.stem.partition("-")[2]) + 1


def test_readers_continue_while_a_segment_is_sealed(
    tmp_path: Path, records: list[Archived]
) -> None:
    segments = Segments(tmp_path, SMALL)
    for record in records[:20]:
        segments.add(record)
    segments.sync()
    reading: Iterator[Archived] = segments.read(1)
    assert next(reading) == records[0]
    for record in records[20:40]:
        segments.add(record)
    segments.sync()
    assert [*reading][:19] == records[1:20]


@given(st.data())
@settings(max_examples=15, deadline=None)
def test_changed_bytes_are_detected_and_other_epochs_stay_readable(
    tmp_path_factory: pytest.TempPathFactory, records: list[Archived], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("flip")
    kept(folder, records, every=5).seal()
    path = data.draw(st.sampled_from(files(folder)))
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    segments = Segments(folder, SMALL)
    for first in range(1, len(records), 25):
        with suppress(DamagedFileError, NotArchivedError):
            list(segments.read(first))
    for span in segments.spans():
        assert [*segments.read(span.first)] == records[span.first - 1 : span.last]
    assert sum(last - first + 1 for first, last in segments.spans()) >= len(records) - 25


def test_a_damaged_block_costs_only_its_own_epochs(tmp_path: Path, records: list[Archived]) -> None:
    kept(tmp_path, records[:70], every=5)
    (left,) = tmp_path.glob("*-open.avro")
    content = bytearray(left.read_bytes())
    content[-30] ^= 1
    left.write_bytes(content)
    segments = Segments(tmp_path, SMALL)
    assert segments.spans() == [EpochSpan(1, 65)]
    assert len(segments.damaged) == 1
    assert not list(tmp_path.glob("*-open.avro"))
