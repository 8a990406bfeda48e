"""The state in pages: each section of the view, placements by range, the topology, a
transition's plan.

A page is cut by rows and by bytes, so that no answer is large. All pages of a query show the epoch
of its first page, which the cursor carries.
"""

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from stele.domain.image import Image, without_memory
from stele.domain.model.archive import ARCHIVE_REPLICATION, archive_summary
from stele.domain.model.cdc_streams import Generation, count_of, end_at, place_of, stream_at
from stele.domain.model.cdc_streams import summary_of as generation_summary
from stele.domain.model.repairs import Ms
from stele.domain.model.requests import state_time_ms
from stele.domain.model.schema import Table
from stele.domain.model.transitions import Transition
from stele.domain.ring.placement import Placement, ends_of, rows_of
from stele.domain.ring.ranges import Range, RangeReplicas
from stele.domain.ring.transition import TransitionPlan
from stele.domain.rules.retention import agreed_snapshots, trimming, truncatable, wanted_members
from stele.domain.snapshot import image_to_facts
from stele.domain.topology.decide import summary_of
from stele.domain.view import filters, section, sections
from stele.log.archive.snapshots import head_of, write
from stele.log.chain import Anchor
from stele.metadata_log.questions import (
    ImageReads,
    cursor_of,
    cursor_text,
    filters_of,
    invalid,
    limit_of,
    one_of,
    parse,
    token,
)
from stele.runtime.answers.metadata_log import (
    AtEpoch,
    CatchUpAnswer,
    CdcStream,
    PlannedRow,
    RequestAnswer,
    TabletRepairTime,
)
from stele.runtime.answers.of_image import schema_answer, topology_answer
from stele.runtime.http import HttpError
from stele.runtime.http_encoding import etag_of, not_modified, respond

PAGE_BYTES: Final = 512 * 1024
"""A page ends after this size, which takes 3 ms to encode."""
SECTIONS: Final = ("nodes", "services", "requests", "keyspaces", "tables", "table_snapshots")

_JSON: Final = msgspec.json.Encoder(order="deterministic")


class PageHandlers:
    """The handlers of everything that is read in pages."""

    def __init__(self, reads: ImageReads) -> None:
        self._reads = reads

    def handlers(self) -> dict[str, Any]:
        """Return the handlers by path."""
        return {
            **{f"/v1/{name}": self._section(name) for name in SECTIONS},
            "/v1/requests/{request_id}": self.get_request,
            "/v1/placements": self.get_placements,
            "/v1/repairs": self.get_repairs,
            "/v1/topology": self.get_topology,
            "/v1/transitions/{transition_id}": self.get_transition,
            "/v1/schema": self.get_schema,
            "/v1/settings": self.get_settings,
            "/v1/catch_up": self.get_catch_up,
            "/v1/cdc/generations": self._section("cdc_generations"),
            "/v1/cdc/streams": self.get_cdc_streams,
        }

    def _section(self, name: str) -> Any:
        known = filters().get(name, {})

        async def get_section(request: Request) -> Response:
            asked = filters_of(request)
            for filter_name, value in asked.items():
                one_of(filter_name, value, known[filter_name].values)

            def rows(image: Image) -> Iterable[msgspec.Struct]:
                found: Sequence[msgspec.Struct] = section(image, name)
                if not asked:
                    return found
                return [r for r in found if all(known[k].fits(r, v) for k, v in asked.items())]

            head = _HEADS.get(name, _no_head)
            return await self._page(
                request, lambda image: (name, partial(head, image), rows(image))
            )

        get_section.__name__ = f"get_{name}"
        return get_section

    async def get_request(self, request: Request) -> Response:
        image = await self._reads.image(request)
        known = image.request(request.path_params["request_id"])
        if known is None:
            raise _nothing("request", request.path_params["request_id"], image)
        transition = image.topology.of_request(known.request_id)
        answer = RequestAnswer(
            **_place(image),
            request=known,
            transition=None if transition is None else summary_of(transition),
        )
        return await self._whole(request, image, answer)

    async def get_schema(self, request: Request) -> Response:
        image = await self._reads.image(request)
        return await self._whole(request, image, schema_answer(image))

    async def get_topology(self, request: Request) -> Response:
        image = await self._reads.image(request)
        return await self._whole(request, image, topology_answer(image))

    async def get_catch_up(self, request: Request) -> Response:
        image = await self._reads.image(request)
        archive = image.archive
        answer = CatchUpAnswer(
            **_place(image),
            archive_replication=ARCHIVE_REPLICATION.text(wanted_members(image)),
            replicas=section(image, "catch_up_replicas"),
            readers=section(image, "log_readers"),
            agreed=tuple(agreed_snapshots(image)),
            archive=archive_summary(archive),
            truncation=truncatable(image, state_time_ms(image.state_id)),
            trimming=trimming(image, state_time_ms(image.state_id)),
        )
        return await self._whole(request, image, answer)

    async def get_placements(self, request: Request) -> Response:
        asked = filters_of(request)

        def rows(image: Image) -> tuple[str, dict[str, object], Iterable[msgspec.Struct]]:
            name, placement = _placement(image, asked)
            head = {
                "placement": name,
                "keyspaces": [k.name for k in image.schema.using(name)],
                "ranges": len(placement),
            }
            return "rows", head, _rows(placement, asked)

        return await self._page(request, rows)

    async def get_repairs(self, request: Request) -> Response:
        asked = filters_of(request)
        tablet = asked.get("tablet")
        place = 0 if tablet is None else parse("tablet", tablet)

        def rows(image: Image) -> tuple[str, dict[str, object], Sequence[TabletRepairTime]]:
            name = asked.get("table", "")
            table = image.schema.table_named(name)
            if table is None or not table.placement:
                raise _nothing("table with tablets", name, image)
            count = len(image.ring.placements[table.placement])
            owner = image.schema.map_owner(table)
            found: Sequence[TabletRepairTime] = _repair_times(
                image.repairs.of(owner.table_id, count)
            )
            if tablet is not None:
                found = found[place : place + 1]
            return "repairs", {"table": name, "tablets": count}, found

        return await self._page(request, rows)

    async def get_transition(self, request: Request) -> Response:
        transition_id = request.path_params["transition_id"]

        def rows(image: Image) -> tuple[str, dict[str, object], Iterable[msgspec.Struct]]:
            transition = image.topology.transitions.get(transition_id)
            if transition is None:
                raise _nothing("open transition", transition_id, image)
            return "rows", {"transition": summary_of(transition)}, _planned_rows(transition)

        return await self._page(request, rows)

    async def get_settings(self, request: Request) -> Response:
        def rows(image: Image) -> tuple[str, dict[str, object], Iterable[tuple[str, str]]]:
            head = {"features": section(image, "features")}
            return "settings", head, list(section(image, "settings").items())

        return await self._page(request, rows)

    async def get_cdc_streams(self, request: Request) -> Response:
        asked = filters_of(request)

        def rows(image: Image) -> tuple[str, dict[str, object], Sequence[CdcStream]]:
            generation = _generation(image, asked.get("generation", ""))
            found: Sequence[CdcStream] = _cdc_streams(generation.streams)
            if "token" in asked:
                held = place_of(generation.streams, token("token", asked["token"]))
                found = found[held : held + 1]
            return "streams", {"generation": generation_summary(generation)}, found

        return await self._page(request, rows)

    async def _whole(self, request: Request, image: Image, answer: AtEpoch) -> Response:
        etag = etag_of(image.state_id)
        return not_modified(request, etag) or await respond(request, _JSON.encode(answer), etag)

    async def _page(self, request: Request, ask: Any) -> Response:
        """Answer with one page.

        ``ask`` maps an image to the name of the rows, the fields before them, and the rows. The
        fields may be a function of the rows on the page.
        """
        cursor, limit = cursor_of(request), limit_of(request)
        image = await self._reads.image_of(request, cursor)
        etag = etag_of(image.state_id)
        unchanged = not_modified(request, etag)
        if unchanged is not None:
            return unchanged
        name, head, rows = ask(image)
        offset = 0 if cursor is None else cursor.offset
        page = list(_cut(rows[offset : offset + limit]))
        following = offset + len(page)
        if callable(head):
            head = head(rows[offset:following])
        if following < len(rows):
            self._reads.keep(image)
            after = cursor_text(image.epoch, image.state_id, following, request)
        else:
            after = ""
        opening, closing = (b"{", b"}") if name == "settings" else (b"[", b"]")
        body = (
            _JSON.encode({**_place(image), **head})[:-1]
            + b',"%s":%s' % (name.encode(), opening)
            + b",".join(page)
            + closing
            + b',"next_cursor":"%s"}' % after.encode()
        )
        return await respond(request, body, etag)


def _no_head(image: Image, rows: Sequence[Any]) -> dict[str, object]:
    return {}


def _requests_head(image: Image, rows: Sequence[Any]) -> dict[str, object]:
    """Return the epoch and time since which all requests are present."""
    newest = image.requests.forgotten
    epoch, ms = (0, 0) if newest is None else (newest.finished_epoch, newest.ended_ms)
    return {"since_epoch": epoch, "since_ms": ms}


def _keyspaces_head(image: Image, rows: Sequence[Any]) -> dict[str, object]:
    return {"balancing": image.schema.balancing}


def _tables_head(image: Image, rows: Sequence[Table]) -> dict[str, object]:
    """Return the number of tablets by table id, so that a list of tables needs no more requests."""
    placements = image.ring.placements
    return {"tablets": {t.table_id: len(placements[t.placement]) for t in rows if t.placement}}


_HEADS: Final[dict[str, Any]] = {
    "requests": _requests_head,
    "keyspaces": _keyspaces_head,
    "tables": _tables_head,
}


class LazyRows(Sequence[Any]):
    """Rows that are created on access, because a large table has a million of them.

    ``cut`` returns the rows of a slice, whose bounds are within ``count``.
    """

    def __init__(self, count: int, cut: Callable[[int, int], list[Any]]) -> None:
        self._count = count
        self._cut = cut

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, at: Any) -> Any:
        begin, end, _ = at.indices(self._count)
        return self._cut(begin, max(begin, end))


def _placement_rows(placement: Placement) -> LazyRows:
    def cut(begin: int, end: int) -> list[RangeReplicas]:
        rows = placement.table.all()
        return [*rows_of(rows.cut(begin, end), ends_of(rows.keys)[begin:end], placement.nodes)]

    return LazyRows(len(placement), cut)


def _planned_rows(transition: Transition) -> LazyRows:
    plans = sorted(transition.plans.items())
    rows = [(name, row) for name, plan in plans for row in plan.rows]
    return LazyRows(
        len(rows),
        lambda begin, end: [
            PlannedRow(name, *msgspec.structs.astuple(row)) for name, row in rows[begin:end]
        ],
    )


def _repair_times(times: Ms) -> LazyRows:
    """Return the last repair time of each tablet of a table, by number."""
    return LazyRows(
        len(times),
        lambda begin, end: [
            TabletRepairTime(*each) for each in enumerate(times[begin:end].tolist(), begin)
        ],
    )


def _cdc_streams(streams: bytes) -> LazyRows:
    return LazyRows(
        count_of(streams),
        lambda begin, end: [
            CdcStream(end_at(streams, each), stream_at(streams, each).hex())
            for each in range(begin, end)
        ],
    )


def _generation(image: Image, generation_id: str) -> Generation:
    """Return the generation with this id, or without an id the newest committed one."""
    cdc = image.cdc
    found = cdc.generations.get(generation_id) if generation_id else cdc.newest()
    if found is None:
        raise _nothing("CDC generation", generation_id or "newest", image)
    return found


def _cut(rows: Iterable[Any]) -> Iterator[bytes]:
    """Encode rows as JSON until the page is full, but at least one."""
    size_bytes = 0
    for row in rows:
        if size_bytes > PAGE_BYTES:
            return
        if isinstance(row, tuple):
            encoded = b"%s:%s" % (_JSON.encode(row[0]), _JSON.encode(row[1]))
        else:
            encoded = _JSON.encode(row)
        size_bytes += len(encoded)
        yield encoded


def _placement(image: Image, asked: dict[str, str]) -> tuple[str, Placement]:
    """Return the requested placement, by its own name or by a keyspace's."""
    name = asked.get("placement", "")
    if "keyspace" in asked:
        name = _placement_name(image, asked["keyspace"])
    if not name:
        raise invalid("which placement", "Send keyspace=<name> or placement=<name>.")
    placement = image.ring.placements.get(name)
    if placement is None:
        raise _nothing("placement", name, image)
    return name, placement


def _placement_name(image: Image, name: str) -> str:
    """Return the placement of a table, or of a keyspace without tablets, even while it is being
    dropped.
    """
    table, keyspace = image.schema.table_named(name), image.schema.named(name)
    if table is not None:
        return image.schema.data_of(table).placement
    if keyspace is None:
        raise _nothing("table" if "." in name else "keyspace", name, image)
    if keyspace.tablets:
        raise invalid(f"keyspace={name}", f"It has tablets: send keyspace={name}.<table>.")
    return keyspace.placement


def _rows(placement: Placement, asked: dict[str, str]) -> Sequence[RangeReplicas]:
    if "token" in asked:
        return (placement.row_for(token("token", asked["token"])),)
    if "range" in asked:
        start, _, end = asked["range"].partition(":")
        return placement.overlapping(Range(token("range", start), token("range", end)))
    return _placement_rows(placement)


def _place(image: Image) -> dict[str, Any]:
    return {"epoch": image.epoch, "state_id": image.state_id.hex()}


def _nothing(what: str, name: str, image: Image) -> HttpError:
    return HttpError(
        404,
        f"unknown_{what.rpartition(' ')[2]}",
        f"There is no {what} '{name[:80]}' at epoch {image.epoch}.",
        hint="Check the name, or ask for another epoch.",
        details={"epoch": image.epoch},
    )


# The whole state: as JSON in small parts, so that no large value is encoded at once, or as a
# file.


_LARGE: Final = (Transition, TransitionPlan)
"""Rows that contain as many rows as the ring. They are encoded in parts too."""


def state_parts(image: Image, hash_: str) -> Iterator[bytes]:
    """Yield the parts of the JSON of ``domain.view.view``."""
    head = {"epoch": image.epoch, "state_id": image.state_id.hex(), "hash": hash_}
    yield from _parts({**head, **sections(image)})


def dump_of(image: Image) -> bytes:
    """Return a file in the archive's snapshot format, without the memory of decided requests.

    It has no offset in the topic, so no reader continues from it.
    """
    known = without_memory(image)
    file = io.BytesIO()
    write(
        file,
        head_of(known, 0, Anchor(0, b""), state_time_ms(known.state_id)),
        image_to_facts(known),
    )
    return file.getvalue()


def _parts(value: Any) -> Iterator[bytes]:
    if isinstance(value, _LARGE):
        value = {name: getattr(value, name) for name in value.__struct_fields__}
    if isinstance(value, Mapping):
        separator = b"{"
        for key, each in value.items():
            yield separator + _JSON.encode(key) + b":"
            yield from _parts(each)
            separator = b","
        yield b"}" if value else b"{}"
    elif isinstance(value, Sequence) and not isinstance(value, str):
        separator = b"["
        for each in value:
            yield separator
            yield from _parts(each) if isinstance(each, _LARGE) else (_JSON.encode(each),)
            separator = b","
        yield b"]" if value else b"[]"
    else:
        yield _JSON.encode(value)
