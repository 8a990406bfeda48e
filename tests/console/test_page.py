"""The page in a real browser against a real stack."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Route, expect

from stele.domain.model.requests import time_ms
from stele.runtime.callers import line_of
from stele.runtime.request_ids import new_request_id
from stele_harness.stack.process import Program
from stele_harness.stack.stack import SERVICES, Stack
from tests import forked
from tests.console.browser import PICTURES, Watched, chromium, serious_faults
from tests.polling import wait_until

pytestmark = [pytest.mark.browser]

NEEDED = {"metadata-log", "coordinator", "session-guard", "tablet-balancer", "console"}
TOKEN = "adas/token+of~hers="


WRONG = (
    *("constructor", "__proto__", "%E0%A4%A", "map?epoch=abc", "map?epoch=-1", "map?against=x"),
    *("map?colour=constructor", "map?map=__proto__", "map?row=-1", "map?row=99999999"),
    *("requests?request=constructor", "nodes?node=__proto__", "history?from=x&to=7"),
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def stack(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Yield a stack. It is not started without a browser."""
    directory: Path = tmp_path_factory.mktemp("console")
    services = [spec for spec in SERVICES if spec.name in NEEDED]
    with Stack(directory, nodes=3, services=services) as running:
        wait_until(lambda: normal(running) == 3, "three nodes to be normal")
        command(running, type="create_keyspace", name="library", replication={"dc1": 3})
        command(running, type="create_keyspace", name="shop", replication={"dc1": 2}, tablets=True)
        command(running, type="create_table", name="shop.orders")
        yield running


@pytest.fixture
def watched(stack: Stack, browser: Browser) -> Iterator[Watched]:
    page = Watched(browser, stack.url("console"))
    yield page
    page.page.context.close()
    assert not page.complaints


def command(stack: Stack, **fields: object) -> int:
    """Send a command, and return its epoch."""
    body = {"request_id": new_request_id(), "actor": "ann", "reason": "a trial", "command": fields}
    answer = httpx.post(f"{stack.url('metadata-log')}/v1/commands", json=body, timeout=240)
    assert answer.status_code == 200, answer.text
    epoch: int = answer.json()["epoch"]
    return epoch


def normal(stack: Stack) -> int:
    """Return the number of normal nodes."""
    nodes = httpx.get(f"{stack.url('metadata-log')}/v1/nodes", timeout=240).json()["nodes"]
    return sum(node["state"] == "normal" for node in nodes)


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthz", timeout=5).is_success
    except httpx.TransportError:
        return False


def newest(stack: Stack) -> int:
    epoch: int = httpx.get(f"{stack.url('metadata-log')}/v1/topology", timeout=240).json()["epoch"]
    return epoch


def is_quiescent(stack: Stack) -> bool:
    """Return whether the last change is fenced and no operation is open, so that plans stay valid."""
    found = httpx.get(f"{stack.url('metadata-log')}/v1/topology", timeout=240).json()
    versions = found["topology"]
    return not found["transitions"] and versions["fence_version"] == versions["version"]


def test_join_is_shown_live(stack: Stack, watched: Watched) -> None:
    page = watched.open("#/nodes")
    expect(page.locator("[data-node=n3]")).to_contain_text("normal")
    page.evaluate(RECORD)
    stack.add_node(4)
    expect(page.locator("[data-node=n4]")).to_contain_text("normal", timeout=240_000)
    page.goto(watched.url + "/#/operations")
    expect(page.locator("tbody tr", has_text="join n4")).to_contain_text("done")
    assert {"normal"} < {*page.evaluate("globalThis.states")}, "it was seen on its way"
    delays: list[float] = page.evaluate("globalThis.delays")
    assert delays, "changes reach the page"
    PICTURES.mkdir(parents=True, exist_ok=True)
    (PICTURES / "delays.json").write_text(json.dumps(sorted(delays)))
    watched.picture("operations")


RECORD = """() => {
    const known = globalThis.steleConsole;
    globalThis.delays = [];
    globalThis.states = [];
    let epoch = known.state.newest;
    known.listen(() => {
        const row = known.state.overview.nodes.find((node) => node.node_id === "n4");
        if (row) globalThis.states.push(row.state);
        if (known.state.newest === epoch) return;
        epoch = known.state.newest;
        globalThis.delays.push(known.state.delayMs);
    });
}"""


def test_time_line_shows_a_past_epoch_and_returns(stack: Stack, watched: Watched) -> None:
    before = newest(stack)
    after = command(stack, type="set_setting", name="colour", value="<b>blue</b>")
    page = watched.open("#/nodes")
    expect(page.locator("[data-node=n1]")).to_contain_text("normal")
    page.locator("input.slider").fill("1")
    expect(page.locator("[data-notice=past]")).to_contain_text("epoch 1 of")
    expect(page.locator("[data-node=n1]")).to_have_count(0)
    assert page.evaluate("location.hash") == "#/nodes?epoch=1"
    page.get_by_role("button", name="Next epoch").click()
    expect(page.locator("[data-notice=past]")).to_contain_text("epoch 2 of")
    page.get_by_role("button", name="live").click()
    expect(page.locator("[data-node=n1]")).to_contain_text("normal")
    moment = page.locator("[name=moment]")
    for long_ago in ("2001-01-01T00:00:00", "1901-01-01T00:00:00"):
        moment.fill(long_ago)
        moment.press("Enter")
        expect(page.locator("[data-note=moment]")).to_contain_text("no epoch of that time")
        expect(page.locator("[data-notice=past]")).to_contain_text("epoch 1 of")
        expect(page.locator("[data-notice=problem]")).to_have_count(0)
        page.get_by_role("button", name="live").click()

    page.goto(f"{watched.url}/#/history?list=epochs&from={before}&to={after}")
    line = page.locator(".difference-groups .plus", has_text="setting colour")
    expect(line).to_have_text("+ setting colour = <b>blue</b>")
    expect(line.locator("b")).to_have_count(1)
    first = page.locator(f"[data-epoch='{after}']")
    expect(first).to_contain_text("ann: a trial")
    expect(first).to_contain_text("colour = <b>blue</b>")
    watched.picture("difference")

    page.goto(f"{watched.url}/#/schema")
    expect(page.locator("[data-name=colour]")).to_contain_text("<b>blue</b>")
    expect(page.locator("[data-name='shop.orders']")).to_contain_text("tablets")
    page.locator("input.slider").fill("1")
    expect(page.locator("main")).to_contain_text("There is no keyspace.")
    expect(page.locator("[data-name=colour]")).to_have_count(0)


def test_keyboard_selection_scrolls_into_view_and_escape_closes_it(
    stack: Stack, watched: Watched
) -> None:
    watched.page.set_viewport_size({"width": 800, "height": 300})
    page = watched.open("#/nodes")
    page.locator("[data-node=n1]").focus()
    page.keyboard.press("Enter")
    panel = page.get_by_role("complementary", name="Node n1")
    expect(panel).to_be_focused()
    expect(panel.get_by_role("heading", name="Node n1")).to_be_in_viewport()
    page.keyboard.press("Escape")
    expect(panel).to_have_count(0)
    expect(page.locator("[data-node=n1]")).to_be_focused()


def test_unknown_state_is_not_shown_as_empty(stack: Stack, watched: Watched) -> None:
    page = watched.page
    page.route("**/api/overview*", lambda route: route.abort())
    page.goto(f"{watched.url}/#/operations")
    expect(page.locator("[data-notice=problem]")).to_be_visible()
    expect(page.locator("main")).to_contain_text("Loading operations")
    page.get_by_role("link", name="Nodes").click()
    expect(page.locator("section[aria-label=Nodes]")).to_be_attached()
    assert "no node" not in page.locator("main").inner_text()


def test_wait_of_an_earlier_state_is_not_shown_for_the_present_one(
    stack: Stack, watched: Watched
) -> None:
    """The poll of the services is up to a second old."""
    page = watched.open("#/operations")
    watched.until("globalThis.steleConsole.state.looked")
    assert page.evaluate(STATE_AFTER_THE_LOOK) == [False, True]


STATE_AFTER_THE_LOOK = """async () => {
    const { set, state } = await import("/page/store.js");
    const { overview, looked } = state;
    const why = { lines: [], by_request: { r: ["for ghosts"] }, streamed: {} };
    // What comes from the console meanwhile changes nothing of the two.
    const hold = (name, value) =>
        Object.defineProperty(state, name, { get: () => value, set() {}, configurable: true });
    const shown = [];
    for (const entered_epoch of [looked.epoch + 1, looked.epoch]) {
        const request = { request_id: "r", status: "running", what: "join", submitted_epoch: 1, entered_epoch };
        hold("overview", { ...overview, requests: [request] });
        hold("looked", { ...looked, why });
        set({});
        await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
        shown.push(document.querySelector("main").textContent.includes("ghosts"));
    }
    return shown;
}"""


def test_join_is_one_bar_with_its_epochs(stack: Stack, watched: Watched) -> None:
    page = watched.open("#/history")
    bar = page.locator("[data-operation]", has_text="join n1")
    expect(bar).to_have_count(1)
    bar.focus()
    page.keyboard.press("Enter")
    page.get_by_role("button", name=re.compile("show .* epochs")).click()
    epochs = page.locator("[data-list=epochs-of-operation] .epoch")
    expect(epochs.filter(has_text="join n1 is done")).to_have_count(1)
    assert not re.search("[0-9a-f]{8}-[0-9a-f]{4}-", epochs.first.inner_text())
    everything = page.get_by_role("button", name="all", exact=True)
    expect(everything).to_be_disabled()
    page.get_by_role("button", name="zoom in").click()
    expect(everything).to_be_enabled()


def test_nodes_can_be_sorted_and_have_pages_with_charts(stack: Stack, watched: Watched) -> None:
    page = watched.open("#/nodes")
    rows = page.locator("[data-list=nodes] tbody tr")
    expect(rows.first).to_contain_text("n1")
    page.locator("[data-list=nodes] th[aria-sort=ascending] button").click()
    expect(rows.last).to_contain_text("n1")
    expect(rows.last).to_contain_text(re.compile(r"\d B|\d kB"))
    rows.last.get_by_role("button", name="n1").click()
    chart = page.get_by_role("img", name=re.compile("Stored: now [0-9.]+ k?B"))
    expect(chart.locator("canvas")).to_be_visible()


def test_columns_and_their_diff_are_shown_at_any_epoch(stack: Stack, watched: Watched) -> None:
    key = {"name": "id", "type": "uuid", "kind": "partition_key"}
    table = {"type": "create_table", "name": "library.books", "columns": [key]}
    before = command(stack, type="alter_schema", changes=[table])
    title = {"name": "title", "type": "text"}
    change = {"type": "alter_table", "name": "library.books", "add": [title]}
    after = command(stack, type="alter_schema", changes=[change])
    page = watched.open(f"#/schema?object=library.books&epoch={before}")
    columns = page.locator("[data-list=columns] tbody tr")
    expect(columns).to_have_text(["iduuidpartition key"])
    page.goto(f"{watched.url}/#/schema?object=library.books&epoch={after}&against={before}")
    expect(columns).to_have_text(["iduuidpartition key", "titletext"])
    changed = page.locator("[data-object='library.books'] .plus")
    expect(changed).to_contain_text(["title text,"])


def test_schema_page_names_lagging_nodes(stack: Stack, watched: Watched) -> None:
    page = watched.open("#/schema")
    expect(page.locator("main")).to_contain_text("Schema at epoch")
    expect(page.locator("[data-notice=schema-behind]")).to_have_count(0)
    assert page.evaluate(BEHIND) == "2 live nodes have not applied this schema: n2, n3."


BEHIND = """async () => {
    const store = await import(new URL("page/store.js", location.href));
    for (let turn = 0; turn < 100; turn += 1) {
        store.set({ looked: { ...store.state.looked, schema_behind: ["n2", "n3"] } });
        await new Promise(requestAnimationFrame);
        const notice = document.querySelector("[data-notice=schema-behind]");
        if (notice) return notice.textContent;
    }
    return "";
}"""
"""Set the result of a poll, because no node lags for long. The next poll replaces it."""


def test_text_of_the_log_is_escaped_and_hidden_characters_are_shown(
    stack: Stack, watched: Watched
) -> None:
    """Actor and reason are arbitrary text: markup, bidirectional control characters, very long words."""
    markup = "<img src=x onerror=alert(1)><script>alert(1)</script>"
    hidden, long = "safe\u202egnp.exe\u2066\x1b[31m\u00ad\U000e0041", "w" * 4000
    for actor, reason in ((markup, markup), (hidden, hidden), (long, long)):
        body: dict[str, object] = {"request_id": new_request_id(), "actor": actor, "reason": reason}
        body["command"] = {"type": "set_setting", "name": "colour", "value": reason}
        answer = httpx.post(f"{stack.url('metadata-log')}/v1/commands", json=body, timeout=240)
        assert answer.status_code == 200, answer.text
    page = watched.open("#/history?list=epochs")
    asked = page.locator(".epoch .by")
    expect(asked.filter(has_text=markup)).to_have_count(1)
    expect(
        asked.filter(has_text="safe⟨U+202E⟩gnp.exe⟨U+2066⟩⟨U+001B⟩[31m⟨U+00AD⟩⟨U+E0041⟩")
    ).to_have_count(1)
    expect(asked.filter(has_text=long)).to_have_count(1)
    assert page.locator("img, script:not([src])").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_invalid_address_leads_to_a_working_page(stack: Stack, watched: Watched) -> None:
    newest_before = newest(stack)
    for place in WRONG:
        page = watched.open(f"#/{place}")
        page.reload()
        expect(page.locator("main section").first).to_be_visible()
        watched.until(f"globalThis.steleConsole?.state.overview?.epoch >= {newest_before}")


def test_missing_epoch_is_not_shown_as_another_one(stack: Stack, watched: Watched) -> None:
    page = watched.open("#/nodes")
    expect(page.locator("[data-node=n1]")).to_be_visible()
    page.evaluate("location.hash = '#/nodes?epoch=999999'")
    expect(page.locator("[data-notice=past]")).to_contain_text("cannot be shown")
    expect(page.locator("[data-notice=problem]")).to_contain_text("not there yet")
    expect(page.locator("[data-node=n1]")).to_have_count(0)
    page.get_by_role("button", name="back to now").click()
    expect(page.locator("[data-node=n1]")).to_be_visible()


def test_incoming_events_keep_text_that_is_being_typed(stack: Stack, watched: Watched) -> None:
    page = watched.open("#/history")
    for field in ("input[name=actor]", "[data-field=against]"):
        page.locator(field).fill("3")
        epoch = command(stack, type="set_setting", name="colour", value=field)
        watched.until(f"globalThis.steleConsole.state.overview.epoch >= {epoch}")
        expect(page.locator(field)).to_have_value("3")


def test_map_highlights_differences(stack: Stack, watched: Watched) -> None:
    """Compared with epoch 1 all rows differ. Compared with the newest epoch none does."""
    now = newest(stack)
    page = watched.open("#/map?map=*tokens&against=1")
    watched.until("globalThis.steleConsole.state.map?.differs")
    differing = "[...globalThis.steleConsole.state.map.differs].filter(Boolean).length"
    assert page.evaluate(differing) == page.evaluate("globalThis.steleConsole.state.map.rows")
    page.locator("[data-field=against]").fill(str(now))
    page.locator("[data-field=against]").press("Enter")
    watched.until(f"{differing} === 0")


def test_operation_is_planned_started_and_cancelled_with_buttons(
    stack: Stack, watched: Watched
) -> None:
    """A leave waits for a paused node, so there is time to cancel."""
    page = watched.open("#/nodes?node=n1")
    stack.kill("n3", signal.SIGSTOP)
    try:
        page.get_by_role("button", name="decommission…").click()
        expect(page.locator("[data-plan=starts], [data-plan=waits]")).to_contain_text(
            "Data to stream"
        )
        expect(page.locator("dialog pre")).to_contain_text("decommission n1")
        expect(page.locator("dialog code", has_text="stele decommission n1")).to_be_visible()
        deed = page.locator("[data-deed=confirm]")
        expect(deed).to_be_disabled()
        page.locator("[name=reason]").fill("a smaller machine")
        page.locator("[name=who]").fill("ann")
        watched.picture("plan")
        deed.click()
        expect(page.locator("[data-outcome=done]")).to_be_visible()
        page.locator("[data-deed=follow]").click()
        request = page.locator(".request", has_text="leave n1")
        expect(request).to_contain_text("a smaller machine")
        expect(request.locator(".why")).to_contain_text("n3", timeout=240_000)
        watched.picture("why")
        request.locator("[data-deed=cancel]").click()
        page.locator("[name=reason]").fill("not now")
        page.locator("[data-deed=confirm]").click()
        expect(page.locator("[data-outcome=done]")).to_be_visible()
    finally:
        stack.kill("n3", signal.SIGCONT)
    page.locator("dialog[open] [data-deed=close]").click()
    over = page.locator("tbody tr", has_text="leave n1")
    expect(over).to_contain_text("cancelled", timeout=240_000)


def test_keyspace_is_created_dropped_and_found_in_the_history_by_name(
    stack: Stack, watched: Watched
) -> None:
    page = watched.open("#/operations")

    def ask(operation: str, why: str, **fields: str) -> None:
        page.locator("[data-deed=start]").click()
        page.locator(f"[data-operation={operation}]").click()
        for name, text in fields.items():
            page.locator(f"dialog [name={name}]").fill(text)
        page.locator("[data-deed=plan]").click()
        page.locator("dialog [name=reason]").fill(why)
        page.locator("dialog [name=who]").fill("mallory")
        page.locator("[data-deed=confirm]").click()

    ask("create-keyspace", "a trial", name="archive", replication="dc1=1")
    expect(page.locator("[data-outcome=done]")).to_be_visible()
    page.locator("dialog[open] [data-deed=close]").click()
    ask("create-keyspace", "once more", name="archive", replication="dc1=1")
    expect(page.locator("[data-outcome=refused]")).to_contain_text("archive")
    page.locator("dialog[open] [data-deed=close]").click()
    wait_until(lambda: is_quiescent(stack), "the keyspace to be fenced")
    ask("drop-keyspace", "nobody needs it", name="archive")
    expect(page.locator("[data-outcome=done]")).to_be_visible()
    page.locator("[data-deed=follow]").click()
    expect(page.locator("aside .badge", has_text="done")).to_be_visible(timeout=240_000)

    over = page.locator("tbody tr", has_text="drop_keyspace archive")
    expect(over.first).to_contain_text("nobody needs it")
    page.goto(f"{watched.url}/#/history?about=archive")
    found = page.locator("[data-list=found] .epoch")
    dropped = found.filter(has_text="nobody needs it")
    expect(dropped).to_have_count(1)
    expect(dropped).to_contain_text("drop_keyspace archive")
    begins = found.locator(".facts li", has_text="drop_keyspace archive begins")
    begins.get_by_role("button").click()
    expect(page.locator("aside[aria-label=Operation]")).to_contain_text("mallory: nobody needs it")


def test_unavailable_metadata_log_is_named_and_followed_again(
    stack: Stack, watched: Watched
) -> None:
    epoch = command(stack, type="set_setting", name="colour", value="gray")
    page = watched.open("#/health")
    watched.until(f"globalThis.steleConsole.state.newest >= {epoch}")
    expect(page.locator("[data-process=metadata-log]")).to_contain_text("up")
    stack.stop_one("metadata-log")
    try:
        expect(page.locator("[data-notice=trouble]")).to_contain_text("metadata-log")
        expect(page.locator("[data-process=metadata-log]")).to_contain_text("down")
        watched.picture("away")
        page.get_by_role("link", name="Nodes").click()
        page.locator("[data-node=n1]").click()
        of_node = page.locator("aside[aria-label='Node n1']")
        expect(of_node).to_contain_text("metadata-log does not answer")
        expect(of_node).to_contain_text("address")
    finally:
        stack.start_one("metadata-log")
    expect(page.locator("[data-notice=trouble]")).to_have_count(0, timeout=240_000)
    expect(of_node).not_to_contain_text("does not answer", timeout=240_000)
    expect(of_node.locator(".epoch").first).to_be_visible()
    epoch = command(stack, type="set_setting", name="colour", value="green")
    watched.until(f"globalThis.steleConsole.state.newest >= {epoch}")
    known = page.evaluate("globalThis.steleConsole.state.epochs.map((e) => e.epoch)")
    assert known == [*range(known[0], known[0] - len(known), -1)]


def test_disconnected_page_resumes_without_a_gap(stack: Stack, watched: Watched) -> None:
    page = watched.open("#/history")
    before = page.evaluate("globalThis.steleConsole.state.newest")
    page.context.set_offline(True)
    stack.kill("console")  # its stream ends, and its memory is lost
    epochs = [command(stack, type="set_setting", name="colour", value=f"c{n}") for n in range(5)]
    page.context.set_offline(False)
    # the process restarts, and the page reconnects with growing pauses
    for needed in range(before, epochs[-1] + 1):
        watched.until(f"globalThis.steleConsole.state.epochs.some((e) => e.epoch === {needed})")
    known = page.evaluate("globalThis.steleConsole.state.epochs.map((e) => e.epoch)")
    assert known == sorted({*known}, reverse=True)
    wait_until(lambda: answers(stack.url("console")), "the console to be back")


@pytest.mark.slow
def test_more_pages_than_browser_connections_are_all_live(stack: Stack, watched: Watched) -> None:
    """A browser has six connections for each host. One page is frozen meanwhile, and then catches up."""
    pages = [watched.open("#/history"), *(watched.another("#/health") for _ in range(7))]
    sleeper = watched.page.context.new_cdp_session(pages[0])
    before, state_id = pages[0].evaluate(
        "[globalThis.steleConsole.state.newest, globalThis.steleConsole.state.newestId]"
    )
    sleeper.send("Page.setWebLifecycleState", {"state": "frozen"})
    last = [command(stack, type="set_setting", name="colour", value=f"w{n}") for n in range(20)][-1]
    for page in pages[1:]:
        watched.until(f"globalThis.steleConsole.state.newest >= {last}", page=page)
    assert pages[1].evaluate("globalThis.steleConsole.state.looked.pages") <= 2
    sleeper.send("Page.setWebLifecycleState", {"state": "active"})
    watched.until(f"globalThis.steleConsole.state.newest >= {last}")
    known = pages[0].evaluate("globalThis.steleConsole.state.epochs.map((e) => e.epoch)")
    assert known == [*range(known[0], known[0] - len(known), -1)]
    assert known[-1] <= before
    hello, *told = pages[1].evaluate(ASK_THE_WORKER, [before, state_id])
    assert hello[1]["how"] == "resumed"
    assert [each["epoch"] for name, each in told if name == "epoch"][:20] == [
        *range(before + 1, before + 21)
    ]
    (hello, *_) = pages[1].evaluate(ASK_THE_WORKER, [before, "another history"])
    assert hello[1]["how"] == "anew"
    for page in pages[1:]:
        page.close()


ASK_THE_WORKER = """async ([after, state_id]) => {
    const { WORKER } = await import("/page/listening.js");
    const { port } = new SharedWorker("/page/shared_stream.js", { type: "module", name: WORKER });
    return new Promise((done) => {
        port.onmessage = ({ data }) => done(data.news);
        port.postMessage({ token: "", after, state_id });
    });
}"""
"""Simulate a page that lost its connection to the worker."""


def test_failed_read_of_the_epoch_list_is_retried(stack: Stack, watched: Watched) -> None:
    """The list is requested once at the start, since later events are newer."""
    cut = watched.page.context
    asked: list[str] = []

    def cut_off(route: Route) -> None:
        asked.append(route.request.url)
        route.abort()

    cut.route("**/api/epochs*", cut_off)
    page = watched.open("#/history?list=epochs")
    watched.until("globalThis.steleConsole.state.newest > 0")
    wait_until(lambda: page.evaluate("1") and asked, "the page to ask for the epochs")
    newest: int = page.evaluate("globalThis.steleConsole.state.newest")
    older = max(1, newest - 20)
    assert not page.evaluate(
        f"globalThis.steleConsole.state.epochs.some((e) => e.epoch === {older})"
    )
    cut.set_offline(True)
    stack.kill("console")  # its stream ends
    cut.unroute("**/api/epochs*")
    cut.set_offline(False)
    for epoch in (newest, older):
        watched.until(f"globalThis.steleConsole.state.epochs.some((e) => e.epoch === {epoch})")
    wait_until(lambda: answers(stack.url("console")), "the console to be back")


def test_epoch_that_is_read_and_then_streamed_is_listed_once(
    stack: Stack, watched: Watched
) -> None:
    def with_the_next_one(route: Route) -> None:
        page = route.fetch().json()
        page["newest"] += 1
        page["epochs"].insert(0, {**page["epochs"][0], "epoch": page["newest"]})
        route.fulfill(json=page)

    watched.page.route("**/api/epochs?*", with_the_next_one)
    page = watched.open("#/history?list=epochs")
    watched.until("globalThis.steleConsole.state.epochs.length > 0")
    epoch = command(stack, type="set_setting", name="colour", value="once")
    watched.until(f"globalThis.steleConsole.state.newest >= {epoch}")
    known = page.evaluate("globalThis.steleConsole.state.epochs.map((e) => e.epoch)")
    assert known == [*range(known[0], known[0] - len(known), -1)]


@pytest.mark.parametrize("theme", [pytest.param("light", marks=pytest.mark.slow), "dark"])
def test_no_view_has_a_serious_accessibility_fault(
    stack: Stack, browser: Browser, theme: str
) -> None:
    watched = Watched(browser, stack.url("console"), theme)
    for view in VIEWS:
        page = watched.open(f"#/{view}")
        expect(page.locator("main section").first).to_be_visible()
        found = serious_faults(page, *(["color-contrast"] if theme == "dark" else []))
        watched.picture(f"{view.partition('?')[0]}-{theme}")
        assert not found, (view, found)
    watched.page.context.close()
    assert not watched.complaints


VIEWS = (
    "overview",
    "map?row=1",
    "nodes?node=n1",
    "operations",
    "history?text=colour&from=5&to=8",
    "balance",
    "schema",
    "health",
)


@pytest.fixture
def of_callers(stack: Stack, tmp_path: Path) -> Iterator[str]:
    """Yield another console of the stack that needs tokens of callers."""
    file = tmp_path / "callers"
    file.write_text(f"{line_of('ada', TOKEN)}\n")
    env = {
        **os.environ,
        **stack.environment(),
        "STELE_HTTP_CALLERS_FILE": str(file),
        "STELE_CONSOLE_COMMANDS": "true",
        "STELE_INSTANCE_ID": "console-of-callers",
    }
    argv = [sys.executable, "-m", "stele.console"]
    process = forked.start(Program("console", argv, tmp_path / "out", tmp_path / "err", env))
    wait_until(lambda: process.stdout_of_this_run().endswith("\n"), "the console's address")
    yield json.loads(process.stdout_of_this_run())["http"]
    process.stop()


def test_token_leaves_the_address_and_its_withdrawal_locks_the_page(
    browser: Browser, of_callers: str, tmp_path: Path
) -> None:
    watched = Watched(browser, of_callers)
    page = watched.page
    page.goto(f"{of_callers}/#token={TOKEN}")
    expect(page.get_by_role("navigation")).to_be_visible()
    assert TOKEN not in page.url
    (tmp_path / "callers").write_text(f"{line_of('ada', 'another')}\n")
    expect(page.get_by_label("token")).to_be_visible(timeout=60_000)
    page.context.close()


def test_commands_of_a_caller_with_a_token_have_its_name(
    stack: Stack, browser: Browser, of_callers: str
) -> None:
    watched = Watched(browser, of_callers)
    page = watched.page
    page.goto(f"{of_callers}/#/operations")
    page.get_by_label("token").fill(TOKEN)
    page.get_by_role("button", name="open").click()
    page.locator("[data-deed=start]").click()
    page.locator("[data-operation=create-keyspace]").click()
    page.locator("dialog [name=name]").fill("of_ada")
    page.locator("dialog [name=replication]").fill("dc1=1")
    page.locator("[data-deed=plan]").click()
    expect(page.locator("[data-note=caller]")).to_have_text("Requested as ada")
    expect(page.locator("[name=who]")).to_have_count(0)
    page.locator("[name=reason]").fill("a trial of tokens")
    page.locator("[data-deed=confirm]").click()
    expect(page.locator("[data-outcome=done]")).to_contain_text("Accepted at epoch")
    url = f"{stack.url('metadata-log')}/v1/epochs/search"
    found = httpx.get(url, params={"text": "a trial of tokens"}, timeout=240).json()["epochs"]
    assert [epoch["actor"] for epoch in found] == ["ada"]
    page.context.close()
    assert not watched.complaints


def test_outdated_plan_is_shown_again_before_the_command_is_sent(
    stack: Stack, watched: Watched
) -> None:
    page = watched.open("#/nodes?node=n1")
    page.get_by_role("button", name="move…", exact=True).click()
    page.locator("dialog [name=tokens]").fill(",".join(map(str, range(1, 17))))
    page.locator("[data-deed=plan]").click()
    plan = page.locator("dialog pre")
    expect(plan).to_contain_text("move n1")
    command(stack, type="create_keyspace", name="later", replication={"dc1": 1})
    page.locator("[name=reason]").fill("a hot range")
    page.locator("[data-deed=confirm]").click()
    outcome = page.locator("[data-outcome=refused]")
    expect(outcome).to_contain_text("it would do something else")
    expect(plan).to_contain_text("later")
    page.locator("dialog[open] [data-deed=close]").click()
    requests = httpx.get(f"{stack.url('metadata-log')}/v1/requests", timeout=240).json()["requests"]
    assert "move" not in {request["kind"] for request in requests}


def test_lost_answer_keeps_its_request_id_and_a_refusal_gets_a_new_one(
    stack: Stack, watched: Watched
) -> None:
    page = watched.open("#/operations")
    sent = list[str]()

    def lose_the_answer(route: Route) -> None:
        sent.append(json.loads(route.request.post_data or "")["request_id"])
        if len(sent) == 1:
            route.fetch()
            route.abort()
        else:
            route.continue_()

    page.route("**/api/commands", lose_the_answer)

    def ask() -> None:
        page.locator("[data-deed=start]").click()
        page.locator("[data-operation=create-keyspace]").click()
        page.locator("dialog [name=name]").fill("twice")
        page.locator("dialog [name=replication]").fill("dc1=1")
        page.locator("[data-deed=plan]").click()
        page.locator("dialog [name=reason]").fill(f"try {len(sent)}")
        page.locator("[data-deed=confirm]").click()

    ask()
    expect(page.locator("[data-outcome=refused]")).to_contain_text("unknown")
    page.locator("dialog[open] [data-deed=close]").click()
    ask()  # the dialog is opened again, with another reason
    expect(page.locator("[data-outcome=done]")).to_be_visible()
    page.locator("dialog[open] [data-deed=close]").click()
    ask()
    refused = page.locator("[data-outcome=refused]")
    expect(refused).to_contain_text("twice")
    page.locator("[data-deed=confirm]").click()
    wait_until(lambda: page.evaluate("1") and len(sent) == 4, "the fourth try")
    assert sent[0] == sent[1]
    assert len({*sent}) == 3


def test_expired_request_id_is_replaced_by_one_after_the_horizon(
    stack: Stack, watched: Watched
) -> None:
    """A fast clock may have raised the horizon above the time of the page."""
    page = watched.open("#/operations")
    sent, horizon_ms = list[str](), time_ms(new_request_id()) + 240_000

    def refuse_the_first(route: Route) -> None:
        sent.append(json.loads(route.request.post_data or "")["request_id"])
        if len(sent) == 1:
            body = {"code": "request_id_expired", "message": "too old", "hint": ""}
            details = {"horizon_ms": str(horizon_ms), "request_id": sent[0]}
            route.fulfill(status=410, json={**body, "details": details})
        else:
            route.continue_()

    page.route("**/api/commands", refuse_the_first)
    page.locator("[data-deed=start]").click()
    page.locator("[data-operation=create-keyspace]").click()
    page.locator("dialog [name=name]").fill("behind")
    page.locator("dialog [name=replication]").fill("dc1=1")
    page.locator("[data-deed=plan]").click()
    page.locator("dialog [name=reason]").fill("a clock was ahead")
    page.locator("[data-deed=confirm]").click()
    expect(page.locator("[data-outcome=done]")).to_be_visible()
    assert [time_ms(each) > horizon_ms for each in sent] == [False, True]


def test_dragging_the_time_line_reads_only_the_final_state(stack: Stack, watched: Watched) -> None:
    for n in range(12):
        command(stack, type="set_setting", name="colour", value=f"d{n}")
    page = watched.open("#/nodes")
    asked, held = list[str](), list[Route]()

    def hold(route: Route) -> None:
        asked.append(route.request.url)
        if len(asked) == 1:
            held.append(route)
        else:
            route.continue_()

    page.route("**/api/overview?epoch=*", hold)
    for epoch in range(2, 14):
        page.locator("input.slider").fill(str(epoch))
    wait_until(lambda: page.evaluate("1") and held, "the first question")
    held[0].continue_()
    watched.until("globalThis.steleConsole.state.overview?.epoch === 13")
    assert len(asked) == 2, asked


def test_missing_map_is_not_shown_as_another_one(stack: Stack, watched: Watched) -> None:
    page = watched.open("#/map?map=*tokens&row=1")
    expect(page.locator("aside[data-row='1']")).to_be_visible()
    page.evaluate("location.hash = '#/map?map=tablets:none&row=1'")
    expect(page.locator(".empty")).to_contain_text("This map is not there")
    expect(page.locator("aside")).to_have_count(0)
    painted = page.evaluate(INKED)
    assert not painted
    page.get_by_role("button", name="show another").click()
    watched.until("globalThis.steleConsole.state.map !== null")


INKED = """() => {
    const { context, canvas } = globalThis.steleConsole.sheet();
    const pixels = new Uint32Array(context.getImageData(0, 0, canvas.width, canvas.height).data.buffer);
    return pixels.some((each) => each !== pixels[0]);
}"""
"""Return whether the canvas has any content."""


def test_selected_row_belongs_to_the_map_in_the_address(stack: Stack, watched: Watched) -> None:
    """Another table may be the first one later."""
    page = watched.open("#/map")
    watched.until("globalThis.steleConsole.state.map !== null")
    page.locator("canvas").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("aside[data-row='0']")).to_be_visible()
    assert "map=tablets" in page.evaluate("decodeURIComponent(location.hash)")
    expect(page.locator(".mapview > [role=status]")).to_contain_text("tablet 0")


def test_planned_move_links_to_the_map_of_its_table(stack: Stack, watched: Watched) -> None:
    command(stack, type="create_table", name="shop.zebras")
    page = watched.open("#/balance")
    watched.until("globalThis.steleConsole.state.overview.tables.includes('shop.zebras')")
    page.evaluate("import('/page/store.js').then((m) => m.showTablet('shop.zebras', 2))")
    expect(page.locator("aside[data-row='2']")).to_contain_text("shop.zebras")


def test_load_is_not_shown_for_past_epochs(stack: Stack, watched: Watched) -> None:
    page = watched.open(f"#/map?colour=load&epoch={newest(stack) - 1}")
    expect(page.locator("[data-note=load]")).to_contain_text("past is not stored")
    assert page.evaluate("globalThis.steleConsole.state.load") is None
    page.goto(f"{watched.url}/#/balance?epoch=3")
    expect(page.locator("[data-note=now]")).to_contain_text("present only, not for epoch 3")


def test_failing_view_reports_it_and_does_not_affect_others(stack: Stack, watched: Watched) -> None:
    page = watched.open("#/nodes")
    page.route("**/api/balance", lambda route: route.fulfill(json=[1, 2, 3]))
    page.get_by_role("link", name="Balance").click()
    expect(page.locator("[data-note=failed]")).to_contain_text("cannot be shown")
    last = command(stack, type="set_setting", name="colour", value="whole")
    watched.until(f"globalThis.steleConsole.state.newest >= {last}")
    page.get_by_role("link", name="Nodes").click()
    expect(page.locator("[data-node=n1]")).to_be_visible()
    page.get_by_role("link", name="Balance").click()
    expect(page.locator("[data-note=failed]")).to_contain_text("cannot be shown")
    page.unroute("**/api/balance")
    page.locator("[data-note=failed] button").click()
    expect(page.get_by_role("heading", name="Tablets are")).to_be_visible()
    assert watched.complaints
    watched.complaints.clear()


def test_balance_page_keeps_its_time_span_over_a_reload(stack: Stack, watched: Watched) -> None:
    page = watched.open("#/balance")
    expect(page.locator("[data-table='shop.orders']")).to_be_visible()
    page.locator("select[name=span]").select_option("day")
    page.reload()
    expect(page.locator("select[name=span]")).to_have_value("day")
    assert "span=day" in page.evaluate("location.hash")


def test_unavailable_redis_is_reported_by_its_users(stack: Stack, watched: Watched) -> None:
    page = watched.open("#/health")
    redis = page.locator("[data-of=redis]")
    expect(redis).to_have_text("no process reports a problem", timeout=240_000)
    expect(page.locator("[data-of=broker]")).to_have_text("no process reports a problem")
    stack.redis.signal(signal.SIGSTOP)
    try:
        expect(redis).to_contain_text("session-guard: degraded: Redis is away", timeout=240_000)
    finally:
        stack.redis.signal(signal.SIGCONT)
    expect(redis).to_have_text("no process reports a problem", timeout=240_000)


def test_owners_of_a_range_are_listed_by_epoch(stack: Stack, watched: Watched) -> None:
    page = watched.open("#/map?map=*tokens")
    ring = page.evaluate(
        "globalThis.steleConsole.state.overview.maps.find((m) => m.name.startsWith('ring')).placement"
    )
    page.goto(f"{watched.url}/#/map?map={ring}&row=0")
    told = page.locator("[data-list=range] .epoch")
    expect(told.first).to_be_visible()
    epochs = [int(each.get_attribute("data-epoch") or 0) for each in told.all()]
    assert epochs == sorted({*epochs}, reverse=True)


def test_paused_metadata_log_is_reported_before_its_stream_times_out(
    stack: Stack, watched: Watched
) -> None:
    page = watched.open("#/nodes")
    notice = page.locator("[data-notice=trouble]")
    expect(notice).to_have_count(0)
    stack.kill("metadata-log", signal.SIGSTOP)
    try:
        expect(notice).to_contain_text("does not answer", timeout=240_000)
        expect(notice).to_contain_text("This page shows epoch")
    finally:
        stack.kill("metadata-log", signal.SIGCONT)
    expect(notice).to_have_count(0, timeout=240_000)


def test_paused_console_is_reported_and_resumes_without_a_gap(
    stack: Stack, watched: Watched
) -> None:
    page = watched.open("#/history")
    before = page.evaluate("globalThis.steleConsole.state.newest")
    notice = page.locator("[data-notice=trouble]")
    stack.kill("console", signal.SIGSTOP)
    try:
        expect(notice).to_contain_text("sent nothing for", timeout=240_000)
        last = command(stack, type="set_setting", name="colour", value="still")
    finally:
        stack.kill("console", signal.SIGCONT)
    watched.until(f"globalThis.steleConsole.state.newest >= {last}")
    expect(notice).to_have_count(0, timeout=240_000)
    for needed in range(before, last + 1):
        watched.until(f"globalThis.steleConsole.state.epochs.some((e) => e.epoch === {needed})")
