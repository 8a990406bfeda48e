"""The map of a live page while tablets change, and reads of it fail for a moment."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest
from playwright.sync_api import Route

from stele.domain.column import NumberColumn
from stele.domain.evolve import evolve
from stele.domain.facts import Epoch
from stele.domain.model.ring import PackedRanges, PackedRows, PlacementChanged
from stele.domain.model.schema import tablet_map
from stele.domain.ring.ranges import MIN_TOKEN
from tests.console.browser import Watched, chromium
from tests.console.generated import TABLE, Generated, large_image, served_beside
from tests.console.process import console
from tests.polling import wait_until

pytestmark = [pytest.mark.browser]

NODES, TABLETS = 4, 64
MAP = "**/api/map*"
OVERVIEW = "**/api/overview*"
VERSIONS = "[...(globalThis.steleConsole.state.map?.version ?? [])].join()"


class Cluster:
    """A cluster whose tablets change."""

    def __init__(self) -> None:
        self.generated = Generated(large_image(NODES, TABLETS))
        self.image = self.generated.image
        width = (1 << 64) // TABLETS
        bounds = MIN_TOKEN - 1 + width * np.arange(TABLETS + 1, dtype=object)
        bounds[0] = bounds[TABLETS] = MIN_TOKEN
        self.bounds = bounds.astype(np.int64)
        self.versions = [0] * TABLETS

    def change(self, *tablets: int) -> None:
        before, n = self.image, self.image.epoch + 1
        at = np.array(tablets)
        for tablet in tablets:
            self.versions[tablet] = n
        column, count = NumberColumn.of, len(tablets)
        starts, ends = column(self.bounds[at]), column(self.bounds[at + 1])
        none, three = column(np.zeros(count, np.int64)), column(np.full(count, 3))
        rows = PackedRows(
            starts=starts,
            ends=ends,
            versions=column(np.full(count, n)),
            versions_before=none,
            writes=three,
            reads=three,
            others=none,
            nodes=column(np.tile(np.arange(3), count)),
        )
        epoch = Epoch(
            prev_state_id=before.state_id,
            state_id=bytes(8) + n.to_bytes(8, "big"),
            epoch=n,
            request_id="",
            command="made",
            facts=(PlacementChanged(tablet_map(TABLE), PackedRanges(starts, ends), rows),),
            at_ms=time.time_ns() // 1_000_000,
            actor="gen",
        )
        self.image = evolve(before, epoch)
        self.generated.tell_beside(epoch, self.image)

    def is_shown(self, watched: Watched) -> None:
        awaited = ",".join(map(str, self.versions))
        wait_until(lambda: watched.page.evaluate(VERSIONS) == awaited, f"the map to be {awaited}")


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture(scope="module")
def watched(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with (
        chromium() as browser,
        served_beside(cluster.generated) as url,
        console(url, tmp_path_factory.mktemp("console")) as address,
    ):
        found = Watched(browser, address)
        found.open("#/map")
        cluster.is_shown(found)
        yield found
        assert not found.complaints


def test_map_is_current_after_returning_from_a_past_epoch(
    cluster: Cluster, watched: Watched
) -> None:
    """An event replaces the read that needs the map by one that does not."""
    page, held = watched.page, list[Route]()

    def hold_first(route: Route) -> None:
        if held or "epoch=" in route.request.url:
            route.continue_()
        else:
            held.append(route)

    cluster.change(7)
    cluster.is_shown(watched)
    page.evaluate("location.hash = '#/map?epoch=1'")
    newest = cluster.image.epoch
    watched.until(f"globalThis.steleConsole.state.map.version[7] !== {newest}")
    page.route(OVERVIEW, hold_first)
    page.evaluate("location.hash = '#/map'")
    wait_until(lambda: page.evaluate("1") and bool(held), "the state of now to be asked for")
    cluster.change(8)
    cluster.is_shown(watched)
    held[0].continue_()
    page.unroute_all(behavior="ignoreErrors")


def test_failed_read_of_the_map_is_retried(cluster: Cluster, watched: Watched) -> None:
    left = [1]

    def fail_once(route: Route) -> None:
        if left and "epoch=" not in route.request.url:
            left.pop()
            route.abort("connectionreset")
        else:
            route.continue_()

    page = watched.page
    page.evaluate("location.hash = '#/map?epoch=1'")
    watched.until("globalThis.steleConsole.state.overview?.epoch === 1")
    cluster.change(20)
    page.route(MAP, fail_once)
    page.evaluate("location.hash = '#/map'")
    wait_until(lambda: page.evaluate("1") and not left, "the map to be asked for")
    cluster.is_shown(watched)
    page.unroute_all(behavior="ignoreErrors")
