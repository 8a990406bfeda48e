"""Pictures of every page of the console in both themes: ``python -m tests.console.pictures``.

A small cluster has keyspaces, a schema, data, a join and a drain. Its pictures replace those in
``docs/pictures``. It takes a few minutes and needs Chromium.
"""

from __future__ import annotations

import base64
import itertools
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx
import msgspec
from playwright.sync_api import Browser, Page

from stele.runtime.request_ids import new_request_id
from stele.words.cql_parser import parse_cql
from stele_harness.stack.stack import SERVICES, Stack
from tests.console.browser import Watched, chromium
from tests.polling import wait_until

ROOT: Final = Path(__file__).resolve().parents[2]
PICTURES: Final = ROOT / "docs" / "pictures"
MOST_BYTES: Final = 60_000
WIDTH, HEIGHT = 1280, 800
QUALITIES: Final = (80, 65, 50, 35, 20)
SERVED: Final = (
    *("metadata-log", "coordinator", "session-guard", "tablet-balancer", "catch-up", "console"),
)
ENV: Final = {"STELE_LOAD_INTERVAL_S": "1", "STELE_RATE_HALF_LIFE_S": "5"}
KEYS: Final = 300
VALUE_BYTES: Final = 60_000
KEYSPACES: Final = ("music.songs", "shop")
LOAD_EVERY_S: Final = 0.05
READY: Final = {
    "balance": "document.querySelector('.heat-map canvas') && document.querySelector('.moves')",
    "history": "document.querySelectorAll('.bar-of').length > 9",
    "map": "globalThis.steleConsole.state.map",
    "node": "document.querySelectorAll('.chart canvas').length > 5",
    "nodes": "/\\d ms/.test(document.querySelector('[data-list=nodes]')?.textContent)",
    "overview": "document.querySelector('main .chart canvas')",
    "schema": "document.querySelector('[data-list=columns]')",
}
"""Conditions for a picture, besides that nothing on the page is loading."""
QUIET: Final = "globalThis.steleConsole.state.looked && !document.querySelector('main .loading')"


def views(page: Page, newest: int) -> dict[str, str]:
    """Return the address of each picture by its name: all links of the navigation, and details.

    Balance is first, while tablets move.
    """
    links = page.locator("nav[aria-label=Views] a")
    found = [str(each.get_attribute("href")).removeprefix("#/") for each in links.all()]
    more = {
        "schema": "schema?object=radio.songs",
        "map": "map?map=&row=1",
        "node": "nodes?node=n1",
        "difference": f"history?from=1&to={newest}",
    }
    return {"balance": "balance", **{name: name for name in found}, **more}


@contextmanager
def cluster(directory: Path) -> Iterator[Stack]:
    """Run a cluster with some history. Streams are slow, so that moves of tablets can be seen."""
    services = [spec for spec in SERVICES if spec.name in SERVED]
    with Stack(directory, nodes=4, services=services, env=ENV) as stack:
        wait_until(lambda: _normal(stack) == 4, "four nodes to be normal")
        _command(
            stack, "the shop opens", type="create_keyspace", name="shop", replication={"dc1": 3}
        )
        music = {"name": "music", "replication": {"dc1": 2}, "tablets": True, "initial_tablets": 16}
        _command(stack, "the jukebox", type="create_keyspace", **music)
        _command(stack, "the jukebox", type="create_table", name="music.songs")
        for name, reason in (("radio", "the radio service"), ("longer", "longer songs")):
            changes = parse_cql((ROOT / "examples" / "schema" / f"{name}.cql").read_text())
            _command(stack, reason, type="alter_schema", changes=changes)
        _command(stack, "a slow disk", type="set_setting", name="stream_mib_per_s", value="1")
        _put(stack)
        stack.add_node(5)
        wait_until(lambda: _normal(stack) == 5, "n5 to join")
        with _load(stack):
            yield stack


def take(directory: Path, folder: Path) -> list[Path]:
    """Run a cluster in ``directory``, and write a picture of each page in each theme."""
    taken = list[Path]()
    with chromium() as browser, cluster(directory) as stack:
        _command(stack, "the machine goes back", type="leave", node_id="n2")
        taken += _take(browser, stack, "light", folder)
        stack.add_node(6)
        taken += _take(browser, stack, "dark", folder)
    return taken


def _take(browser: Browser, stack: Stack, theme: str, folder: Path) -> list[Path]:
    watched, taken = Watched(browser, stack.url("console"), theme), list[Path]()
    watched.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    for name, place in views(watched.open(), _newest(stack)).items():
        page = watched.open(f"#/{place}")
        watched.until(f"Boolean({QUIET})")
        watched.until(f"Boolean({READY.get(name, 'true')})")
        path = folder / f"console-{name}-{theme}.webp"
        path.write_bytes(_picture(page))
        taken.append(path)
    watched.page.context.close()
    assert not watched.complaints
    return taken


def _picture(page: Page) -> bytes:
    """Return the page as WebP, in the best quality that fits."""
    session = page.context.new_cdp_session(page)
    data = b""
    for quality in QUALITIES:
        asked = {"format": "webp", "quality": quality}
        data = base64.b64decode(session.send("Page.captureScreenshot", asked)["data"])
        if len(data) <= MOST_BYTES:
            break
    session.detach()
    return data


def _put(stack: Stack) -> None:
    with httpx.Client(timeout=240) as client:
        for n in range(KEYS):
            url = stack.url(f"n{n % 4 + 1}")
            data = os.urandom(VALUE_BYTES)
            for keyspace in KEYSPACES:
                answer = client.put(f"{url}/v1/data/{keyspace}/k{n}", content=data)
                assert answer.is_success, answer.text


@contextmanager
def _load(stack: Stack) -> Iterator[None]:
    """Read and write through the remaining nodes, so that the charts have values."""
    end = threading.Event()

    def run() -> None:
        with httpx.Client(timeout=240) as client:
            for n in itertools.count():
                if end.wait(LOAD_EVERY_S):
                    return
                url = stack.url(("n1", "n3", "n4")[n % 3])
                key = f"{url}/v1/data/{KEYSPACES[n % 2]}/k{n % KEYS}"
                client.get(key) if n % 5 else client.put(key, content=os.urandom(VALUE_BYTES))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def _command(stack: Stack, reason: str, **fields: object) -> None:
    body = {"request_id": new_request_id(), "actor": "ann", "reason": reason, "command": fields}
    answer = httpx.post(
        f"{stack.url('metadata-log')}/v1/commands", content=msgspec.json.encode(body), timeout=240
    )
    assert answer.status_code == 200, answer.text


def _normal(stack: Stack) -> int:
    nodes = httpx.get(f"{stack.url('metadata-log')}/v1/nodes", timeout=240).json()["nodes"]
    return sum(node["state"] == "normal" for node in nodes)


def _newest(stack: Stack) -> int:
    epoch: int = httpx.get(f"{stack.url('metadata-log')}/v1/topology", timeout=240).json()["epoch"]
    return epoch


if __name__ == "__main__":
    for old in PICTURES.glob("console-*"):
        old.unlink()
    with tempfile.TemporaryDirectory() as directory:
        for path in take(Path(directory), PICTURES):
            print(f"{path.relative_to(ROOT)}  {path.stat().st_size // 1000} kB", flush=True)
    sys.exit(0)
