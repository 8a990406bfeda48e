"""The stream of a page while the metadata-log is unavailable, returns, or follows another log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from stele.console.alerts import ProcessStatus
from stele.console.epoch_text import live_epoch_text
from stele.console.history import HistoryQueries as History_
from stele.console.mirror import Images, Mirror
from stele.console.stream import Pages, epoch_event
from stele.console.upstream import MOST_BYTES, AwayError, Upstream
from stele.console.watch import Hub, Watch
from stele.domain.evolve import evolve
from stele.domain.facts import Epoch
from stele.domain.image import Image
from stele.domain.model.archive import ArchiveTrimmed
from stele.runtime.http import Health, HttpError, bind, build_app, serving
from stele.runtime.transport import PIECE_BYTES, HttpTransport, Transport
from stele.words.decisions import Wanted
from tests.console.generated import Generated, served
from tests.console.test_packed_map import grown, images
from tests.polling import until

LIMIT_S = 240.0


@asynccontextmanager
async def transport() -> AsyncIterator[Transport]:
    http = HttpTransport(redirects=False)
    try:
        yield http
    finally:
        await http.close()


class Console:
    """The parts of a console for these addresses, without its HTTP server."""

    def __init__(self, http: Transport, *urls: str) -> None:
        self.hub = Hub()
        self.upstream = upstream = Upstream(
            http, {"metadata-log": urls, "coordinator": (), "session-guard": ()}
        )
        self.mirror = Mirror(upstream, self._taken, self.hub.restart)
        self.watch = Watch(upstream, self.mirror, self.hub, 60.0)
        self.pages = Pages(self.mirror, self.hub, self.watch)
        self.stopping = asyncio.Event()

    def _taken(self, before: Image, epoch: Epoch, after: Image) -> None:
        self.hub.add(epoch.epoch, epoch_event(live_epoch_text(before, epoch, after)))

    async def read(self, epoch: int) -> None:
        """Wait until the console has read the epoch."""
        async with asyncio.timeout(LIMIT_S):
            while self.mirror.image.epoch < epoch:
                await self.hub.bell().wait()

    async def page(
        self, until: int, after: int = 0, state_id: str = ""
    ) -> list[tuple[str, dict[str, Any]]]:
        """Return the hello, and events up to the epoch."""
        found = list[tuple[str, dict[str, Any]]]()
        async with asyncio.timeout(LIMIT_S):
            async for raw in self.pages.events(after, state_id, self.stopping):
                lines = [line for line in raw.decode().splitlines() if ": " in line]
                fields = dict(line.split(": ", 1) for line in lines)
                if fields.get("event", "looked") == "looked":
                    continue
                name, data = fields["event"], msgspec.json.decode(fields["data"])
                found.append((name, data))
                if data["epoch"] >= until and data.get("how") != "resumed":
                    return found
        return found


class Log(Generated):
    """A metadata-log whose stream begins after epoch ``at`` and that has read the log up to ``to``."""

    def __init__(self, at: int, to: int = 0) -> None:
        self.history = grown()
        super().__init__(self.at(at))
        self.go_on(to)

    def go_on(self, to: int) -> None:
        for epoch in self.history.epochs[self.image.epoch : to]:
            self.tell(epoch, evolve(self.image, epoch))

    def at(self, epoch: int) -> Image:
        return images(self.history)[epoch]

    def id_at(self, epoch: int) -> str:
        return self.at(epoch).state_id.hex()

    def forget_for_another(self, epoch: int) -> bytes:
        """Go back to an epoch of another history. Return its state id."""
        other = msgspec.structs.replace(self.at(epoch), state_id=bytes(15) + b"\7")
        self.forget(other)
        return other.state_id


@asynccontextmanager
async def console(log: Log) -> AsyncIterator[Console]:
    """Yield a console that has read all of the log, unless the log is unavailable."""
    async with served(log) as url, transport() as http:
        found = Console(http, url)
        task = asyncio.create_task(found.mirror.run())
        try:
            if not log.away:
                await found.read(log.image.epoch)
            yield found
        finally:
            found.stopping.set()
            task.cancel()
            await asyncio.wait({task})


def epochs_in(events: list[tuple[str, dict[str, Any]]]) -> list[int]:
    return [data["epoch"] for name, data in events if name == "epoch"]


async def test_page_gets_each_epoch_once_and_in_order() -> None:
    log = Log(3)
    async with console(log) as found:
        page = asyncio.create_task(found.page(12))
        await asyncio.sleep(0)
        log.go_on(12)
        events = await page
    assert events[0][1]["how"] == "begun"
    assert epochs_in(events) == list(range(4, 13))
    assert all(data["live"] for name, data in events if name == "epoch")


async def test_hundred_pages_share_one_upstream_stream() -> None:
    log = Log(3)
    async with console(log) as found:
        pages = [asyncio.create_task(found.page(12)) for _ in range(100)]
        await until(lambda: found.hub.readers == 100, "all pages to be there")
        log.go_on(12)
        for events in await asyncio.gather(*pages):
            assert epochs_in(events) == list(range(4, 13))
        await until(lambda: found.hub.readers == 0, "all pages to be gone")
    assert log.streams == 1


async def test_resumed_page_gets_the_epochs_that_it_missed() -> None:
    log = Log(3)
    async with console(log) as found:
        log.go_on(12)
        await found.read(12)
        events = await found.page(12, 5, log.id_at(5))
    assert events[0][1]["how"] == "resumed"
    assert epochs_in(events) == list(range(6, 13))


async def test_resumed_page_gets_epochs_from_before_the_console_started() -> None:
    """The console restarted in between."""
    log = Log(3, 12)
    async with console(log) as found:
        events = await found.page(12, 5, log.id_at(5))
    assert events[0][1]["how"] == "resumed"
    assert epochs_in(events) == list(range(6, 13))
    assert log.dumps == 1  # a resumed page needs no past state
    assert not any(data["live"] for name, data in events if name == "epoch")


async def test_page_of_another_history_starts_again() -> None:
    async with console(log := Log(9)) as found:
        events = await found.page(9, 9, bytes(16).hex())
    assert events == [("hello", {"how": "anew", "epoch": 9, "state_id": log.id_at(9)})]


async def test_recovered_log_without_shown_epochs_is_read_again() -> None:
    log = Log(3)
    async with console(log) as found:
        log.go_on(9)
        await found.read(9)
        before = found.hub.history
        other = log.forget_for_another(4)
        async with asyncio.timeout(LIMIT_S):
            while found.hub.history == before:
                await found.hub.bell().wait()
        assert found.mirror.image.state_id == other


async def test_state_of_a_replaced_history_is_not_kept() -> None:
    """The state was being read when the log was replaced."""
    log = Log(1, 9)
    async with console(log) as found:
        reading, go_on = asyncio.Event(), asyncio.Event()
        dump = found.mirror._dump

        async def slow(params: dict[str, object]) -> Image:
            image = await dump(params)
            if params:
                reading.set()
                await go_on.wait()
            return image

        found.mirror._dump = slow  # type: ignore[method-assign]
        asked = asyncio.create_task(found.mirror.at(4))
        await reading.wait()
        other = log.forget_for_another(6)
        await until(lambda: found.mirror.image is not log.at(9), "the end of the stream")
        await until(lambda: found.mirror.image.state_id == other, "the other history")
        go_on.set()
        await asked
        assert found.mirror._images.get(4) is None


async def test_unavailable_log_is_reported_and_followed_again() -> None:
    log = Log(3)
    log.away = True
    async with console(log) as found:
        await until(lambda: "away" in found.mirror.trouble, "the trouble to be told")
        with pytest.raises(HttpError, match="away"):
            await found.mirror.at(3)
        history_ = History_(found.upstream, found.mirror)
        with pytest.raises(HttpError, match="away"):
            await history_.page(0, 10)
        with pytest.raises(HttpError, match="away"):
            await history_.decisions(Wanted("", "", None), 10, 0)
        log.away = False
        await found.read(3)
        log.go_on(5)
        await found.read(5)
        assert found.mirror.trouble == ""


async def test_past_state_equals_that_of_the_fold() -> None:
    log = Log(1, 12)
    async with console(log) as found:
        for epoch in (4, 11, 2, 12):
            at = await found.mirror.at(epoch)
            assert at.state_id == log.at(epoch).state_id
            assert at.membership == log.at(epoch).membership


async def test_past_of_a_recreated_cluster_is_not_mixed_with_the_old_one() -> None:
    """The stream of the old cluster has not ended yet."""
    log = Log(1, 12)
    async with console(log) as found:
        found.mirror._images = Images()
        log.log_id = bytes(15) + b"\7"
        past = History_(found.upstream, found.mirror)
        for read in (
            lambda: found.mirror.at(4),
            lambda: found.mirror.state_id_at(4),
            lambda: found.mirror.epochs(4, 2),
            lambda: past.page(0, 10),
            lambda: past.decisions(Wanted("", "", None), 10, 0),
        ):
            with pytest.raises(HttpError) as refused:
                await read()
            assert refused.value.body.code == "other_history"


async def test_lagging_instance_is_replaced_by_one_with_newer_epochs() -> None:
    """The followed instance is partitioned from the log, and its stream is alive."""
    old, new = Log(3), Log(3)
    async with (
        served(old) as first,
        served(new) as second,
        transport() as http,
    ):
        found = Console(http, first, second)
        task = asyncio.create_task(found.mirror.run())
        try:
            await found.read(3)
            await until(lambda: old.streams == 1, "the stream of the first one")
            new.go_on(9)
            shown = [
                ProcessStatus(service="metadata-log", url=url, up=True, ok=True, epoch=epoch)
                for url, epoch in ((first, 3), (second, 9))
            ]
            found.watch.leave_stuck_stream(3, shown)
            assert old.streams == 1  # an event may be in flight
            found.watch.leave_stuck_stream(3, shown)
            await found.read(9)
        finally:
            task.cancel()
            await asyncio.wait({task})


async def test_history_begins_at_the_first_archived_epoch() -> None:
    """A page that reaches before it has only the archived epochs."""
    log = Log(3, 12)
    async with console(log) as found:
        image = found.mirror.image
        trimmed = msgspec.structs.replace(
            image.archive, trimmed=ArchiveTrimmed(epoch=7, state_id="", hash="", members=())
        )
        found.mirror.image = msgspec.structs.replace(image, archive=trimmed)
        page = await History_(found.upstream, found.mirror).page(0, 100)
        assert [each.epoch for each in page.epochs] == [12, 11, 10, 9, 8]
        assert (page.next_before, page.begins) == (0, 8)
        assert (await History_(found.upstream, found.mirror).page(8, 100)).epochs == ()


async def test_status_answer_of_a_process_is_limited_in_size() -> None:
    """The address is from the log, where any joined node may have written it."""

    async def endless(_: Request) -> Response:
        async def body() -> AsyncIterator[bytes]:
            for _ in range(MOST_BYTES // PIECE_BYTES + 2):
                yield bytes(PIECE_BYTES)

        return StreamingResponse(body())

    app = build_app("endless", [Route("/v1/node", endless)], lambda: Health(ok=True))
    async with (
        serving(app, bind("127.0.0.1", 0), grace_s=0) as url,
        transport() as http,
    ):
        with pytest.raises(AwayError, match="has more than"):
            await Upstream(http, {}).one(f"{url}/v1/node", 60.0)


async def test_redirect_of_a_status_request_is_not_followed() -> None:
    """The address is from the log, and a redirect could lead into the network of the console."""

    async def elsewhere(_: Request) -> Response:
        return RedirectResponse("http://127.0.0.1:1/")

    app = build_app("elsewhere", [Route("/v1/node", elsewhere)], lambda: Health(ok=True))
    async with serving(app, bind("127.0.0.1", 0), grace_s=0) as url, transport() as http:
        assert (await Upstream(http, {}).one(f"{url}/v1/node", 60.0)).status == 307


async def test_epoch_unread_by_an_instance_is_503_and_not_404() -> None:
    async with console(log := Log(3)) as found:
        found.mirror.image = log.at(12)
        with pytest.raises(HttpError) as unread:
            await found.mirror.epochs(8, 2)
        with pytest.raises(HttpError) as missing:
            await found.mirror.epochs(13, 2)
    assert (unread.value.status, unread.value.body.code) == (503, "not_ready")
    assert (missing.value.status, missing.value.body.code) == (404, "epoch_not_found")
