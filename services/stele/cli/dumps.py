"""States as files: JSON that a person can edit, or Avro as in the archive's snapshots.

In JSON each fact and each row of a placement is one line. A fact is an entity's row, with ``type``.
Placements are listed as rows with node names. ``numbers`` lists the nodes in the order in which the
log numbered them.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from stele.cli.client import Client
from stele.cli.errors import CliError, UsageError
from stele.domain.column import as_list, column_of
from stele.domain.commands import LoadState
from stele.domain.described_state import Described, Placed, checked, described
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.overrides import packed_state
from stele.domain.ring.ranges import RangeReplicas
from stele.domain.snapshot import image_to_facts, state_hash
from stele.domain.soundness import Flaw
from stele.log.archive import snapshots
from stele.log.archive.container import MAGIC, Container, DamagedFileError

FORMAT = "stele-state-1"
PARTIAL = ".part"
_one_fact: msgspec.json.Decoder[AnyFact] = msgspec.json.Decoder(AnyFact, dec_hook=column_of)
NO_STATE = (LookupError, ValueError, AssertionError, TypeError, OverflowError, RecursionError)
"""Errors when facts that never formed a state are folded."""
MOST_FLAWS = 1000
"""Limit of reported flaws. A file of another kind has one in each line."""


class DumpHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The header of a dump, for people. Only ``epoch`` and ``state_id`` matter when it is read."""

    format: str
    cluster: str = ""
    cluster_id: str = ""
    log_id: str = ""
    epoch: int = 0
    state_id: str = ""
    hash: str = ""
    features: tuple[str, ...] = ()


class DumpedRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row of a placement.

    Without ``writes``, the replicas that serve reads receive the writes.
    """

    start: int
    end: int
    reads: tuple[str, ...]
    writes: tuple[str, ...] | None = None
    version: int = 0
    version_before: int = 0
    other: tuple[str, ...] = ()
    shards: tuple[int, ...] = ()
    other_shards: tuple[int, ...] = ()

    def replicas(self) -> RangeReplicas:
        fields = msgspec.structs.asdict(self)
        return RangeReplicas(
            **{**fields, "writes": self.reads if self.writes is None else self.writes}
        )


class _Document(DumpHeader, frozen=True, kw_only=True, forbid_unknown_fields=True):
    facts: list[msgspec.Raw]
    numbers: tuple[str, ...] = ()
    placements: dict[str, list[msgspec.Raw]] = {}


class Dump(NamedTuple):
    """A parsed dump. ``image`` is None if the file is no valid state; ``flaws`` lists all flaws."""

    head: DumpHeader
    image: Image | None
    flaws: tuple[Flaw, ...]

    @property
    def state(self) -> Image:
        """The image of a dump without flaws."""
        assert self.image is not None
        return self.image

    def load(self) -> LoadState:
        """Return the command that makes this state that of a cluster."""
        return LoadState(
            content=packed(self.state),
            of_epoch=self.head.epoch,
            of_cluster_id=self.head.cluster_id,
            of_log_id=self.head.log_id,
        )


def packed(image: Image) -> bytes:
    """Return a state as commands carry it."""
    return packed_state(image_to_facts(image))


def of_cluster(client: Client, epoch: int | None = None) -> Image:
    """Return the state of a cluster at an epoch, or the newest. Raises CliError."""
    return of_answer(raw_of_cluster(client, epoch)).state


def of_answer(raw: bytes) -> Dump:
    """Parse what ``raw_of_cluster`` returns. Raises UsageError."""
    return parse(raw, "what the metadata-log answers")


def raw_of_cluster(client: Client, epoch: int | None = None) -> bytes:
    """Return the state of a cluster as an Avro file. Raises CliError."""
    return client.get_raw("metadata-log", "/v1/dump", epoch=epoch, level="barrier")


def read(path: Path) -> Dump:
    """Read a file of either format. Raises UsageError if it is neither."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}.") from error
    return parse(content, str(path))


def parse(content: bytes, name: str) -> Dump:
    """Parse a dump of either format. Raises UsageError."""
    return _of_avro(content, name) if content.startswith(MAGIC) else _of_json(content, name)


def sound(path: Path) -> Dump:
    """Read a file that has no flaw. It has an image. Raises CliError."""
    dump = read(path)
    if dump.flaws or dump.image is None:
        raise CliError(
            f"{path} is unsound: {dump.flaws[0]}.",
            f"`stele state check {path}` shows all that is wrong.",
        )
    return dump


def check_free(path: Path) -> None:
    """Raise UsageError if the path exists."""
    if path.exists():
        raise UsageError(f"{path} is there already.", "Take another name, or remove it.")


def write(path: Path, image: Image) -> int:
    """Write an image as JSON and return the size in bytes. Raises CliError."""
    return write_bytes(path, as_json(image))


def write_bytes(path: Path, content: bytes) -> int:
    """Write a file completely or not at all, and return its size. Raises CliError."""
    partial = path.with_name(path.name + PARTIAL)
    try:
        partial.write_bytes(content)
        # The rename is atomic: a reader finds the old file or the whole new one.
        partial.replace(path)
    except OSError as error:
        raise CliError(f"{path} cannot be written: {error.strerror or error}.") from error
    finally:
        partial.unlink(missing_ok=True)
    return len(content)


def as_json(image: Image) -> bytes:
    """Return a state as JSON. Equal states give equal bytes."""
    state = described(image)
    head = _encoded(head_of(image))[:-1]
    facts = (_encoded(fact) for fact, _ in state.facts)
    placements = (
        _encoded(name) + b":" + _lines(map(_row, rows), b"[]")
        for name, rows in state.placements.items()
    )
    return b"".join(
        (
            head,
            b',\n"facts":' + _lines(facts, b"[]"),
            b',\n"numbers":' + _encoded(state.numbers),
            b',\n"placements":' + _lines(placements, b"{}"),
            b"}\n",
        )
    )


def head_of(image: Image) -> DumpHeader:
    return DumpHeader(
        format=FORMAT,
        cluster=image.cluster,
        cluster_id=image.cluster_id,
        log_id=image.log_id.hex(),
        epoch=image.epoch,
        state_id=image.state_id.hex(),
        hash=state_hash(image),
        features=image.features.enabled,
    )


def _row(row: RangeReplicas) -> bytes:
    fields = msgspec.structs.asdict(row)
    said = ("start", "end", "reads")
    if row.writes == row.reads:
        del fields["writes"]
    return _encoded({name: value for name, value in fields.items() if value or name in said})


def _encoded(value: object) -> bytes:
    return msgspec.json.encode(value, enc_hook=as_list)


def _lines(items: Iterator[bytes], brackets: bytes) -> bytes:
    begin, end = brackets[:1], brackets[1:]
    inner = b",\n".join(items)
    return begin + b"\n" + inner + b"\n" + end if inner else brackets


def _of_avro(content: bytes, name: str) -> Dump:
    try:
        container = Container(io.BytesIO(content), snapshots.SCHEMA)
        head, facts = snapshots.read_head(container), snapshots.read_facts(container)
        image = head.start(facts).image
    except (DamagedFileError, snapshots.UnreadableSnapshotError) as error:
        raise UsageError(f"{name} is not a dump: {error}.") from error
    except NO_STATE as error:
        raise UsageError(
            f"{name} is not a dump: its facts do not make a state ({error!r})."
        ) from error
    return Dump(head_of(image), image, checked(described(image)).flaws)


def _of_json(content: bytes, name: str) -> Dump:
    try:
        document = msgspec.json.decode(content, type=_Document)
        if document.format != FORMAT:
            raise msgspec.ValidationError(f"its format is '{document.format[:40]}', not {FORMAT}")
        state_id = bytes.fromhex(document.state_id)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise UsageError(
            f"{name} is not a dump: {_where(content) or error}.",
            "`stele state export` and `stele import read` write one.",
        ) from error
    lines = _LineFinder(content)
    facts, rows = list[Placed](), dict[str, list[RangeReplicas]]()
    flaws = list[Flaw]()
    for raw in document.facts:
        place = lines.place_of(raw)
        try:
            facts.append(Placed(_fact(raw), place))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            flaws.append(Flaw(place, str(error)))
    for placement, raws in document.placements.items():
        rows[placement] = []
        for raw in raws:
            place = lines.place_of(raw)
            try:
                rows[placement].append(msgspec.json.decode(raw, type=DumpedRow).replicas())
            except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                flaws.append(Flaw(f"{place}, placement {placement}", str(error)))
    if flaws:
        return Dump(document, None, tuple(flaws[:MOST_FLAWS]))
    state_id = state_id or bytes(16)
    found = checked(Described(document.epoch, state_id, facts, document.numbers, rows))
    return Dump(document, found.image, found.flaws[:MOST_FLAWS])


def _fact(raw: msgspec.Raw) -> AnyFact:
    """Decode a fact. Raises ValueError for unknown fields, which would have no effect."""
    fact = _one_fact.decode(raw)
    unknown = [*_unknown(msgspec.json.decode(raw), msgspec.json.decode(_encoded(fact)))]
    if unknown:
        raise ValueError(f"there is no field {', '.join(unknown)}")
    return fact


def _unknown(said: Any, understood: Any, path: str = "") -> Iterator[str]:
    if isinstance(said, Mapping) and isinstance(understood, Mapping):
        for name, value in said.items():
            if name in understood:
                yield from _unknown(value, understood[name], f"{path}{name}.")
            else:
                yield f"{path}{name}"


class _LineFinder:
    """Finds the line of each part of a file. Parts must be looked up in their order."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0
        self._line = 1

    def place_of(self, raw: msgspec.Raw) -> str:
        part = bytes(raw)
        found = self._content.find(part, self._at)
        if found < 0:
            found = max(0, self._content.find(part))
            self._at, self._line = 0, 1
        self._line += self._content.count(b"\n", self._at, found)
        self._at = found
        line = self._line
        self._line += part.count(b"\n")
        self._at += len(part)
        return f"line {line}"


def _where(content: bytes) -> str:
    """Return the place in words where a text stops being JSON; empty if it is JSON."""
    try:
        json.loads(content)
    except json.JSONDecodeError as error:
        return f"line {error.lineno}, column {error.colno}: {error.msg}"
    except RecursionError:
        return "it is nested too deeply"
    except UnicodeDecodeError as error:
        return f"byte {error.start} is not valid UTF-8"
    return ""
