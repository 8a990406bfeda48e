"""The pages show real output: the tests run their blocks and compare the output."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import pytest
from redis.asyncio import Redis

from examples.sixty_lines.store import Shelf
from stele.agent import AgentSettings, Member
from stele.agent.agent import Agent
from stele.domain.column import NumberColumn
from stele.node.settings import NodeSettings
from stele.router import Place, Replicas, StaleRoute
from stele.runtime.service import Stop
from stele.session_guard.check import GuardUnavailable, RefusedWrite, read_guard
from stele.session_guard.redis_writer import RedisWriter
from stele.session_guard.settings import SessionGuardSettings
from tests.deployment.in_memory import Site
from tests.docs.pages import REPOSITORY, Block, Shown, blocks, commands, pages
from tests.docs.reader import Reader, execute
from tests.domain.history import three_nodes
from tests.session_guard.world import GuardedWorld

NEVER_RUN = {"text", "mermaid", "sql", "ini"}
"""Languages of blocks that are not run: sample output, files and diagrams. tests/spark runs the SQL."""
ON_ONE_STACK = (
    "docs/get-started/local_cluster.md",
    "docs/guides/history.md",
    "docs/guides/plan.md",
    "docs/reference/node.md",
    "docs/guides/read_state.md",
    "docs/reference/http.md",
    "docs/guides/global_requests.md",
    "docs/guides/cdc.md",
    "docs/guides/replace.md",
    "docs/guides/tokens.md",
    "docs/guides/rebuild.md",
    "docs/guides/zero_token_nodes.md",
    "docs/guides/schema.md",
    "docs/guides/grow.md",
)
"""Pages that share a cluster. The first page starts it."""
ON_ANOTHER_STACK = (
    "docs/guides/shrink.md",
    "docs/guides/drop_keyspace.md",
    "docs/guides/tablets.md",
    "docs/guides/freeze.md",
    "docs/guides/columns_and_types.md",
)
"""Pages that share a second cluster. The first page starts it."""
FROM_AN_EMPTY_FOLDER = ("docs/get-started/first_store.md",)
ANYWHERE = (
    "docs/internals/verification.md",
    "docs/internals/stories.md",
    "docs/guides/plan_tablets_offline.md",
)
"""Pages whose commands need no cluster. They run in the repository."""
PYTHON = (
    "docs/guides/analyse.md",
    "docs/guides/route_requests.md",
    "docs/guides/embed_agent.md",
    "docs/reference/log.md",
    "docs/reference/node.md",
    "docs/concepts/sessions.md",
)
NOT_RUN: Mapping[str, str] = {
    "make demo *": "takes minutes; tests/end_to_end/demo/test_demo.py runs it",
    "make test *": "runs these tests",
    "stele token *": "leaves a secret behind; tests/cli/test_token.py runs it",
    "stele recover *": "needs a lost log; tests/services/test_recover.py loses one",
    "make -C $STELE setup": "has set up this environment",
    ". $STELE/.venv/*": "the tests run in it",
    "pip install *": "needs the network; tests of the extras check what they install",
    "stele conformance -- *": "takes minutes; tests/conformance plays all scenes with this store",
    "make up": "needs Docker; tests/deploy runs it",
    "docker *": "needs Docker",
    "infra/compose *": "needs Docker",
    "stele sim run --seed 7 --html*": "writes a page; tests/sim/test_time_line.py reads one",
    "stele sim run --seed 8 --trace": "prints a hundred thousand lines; the page runs another seed",
    "stele sim sweep *": "takes minutes; tests/sim/test_disasters.py runs the first seeds",
    "stele sim mutants  *": "takes minutes; tests/sim/test_mutants.py repeats what it found",
    "stele sim live *": "takes ten minutes; tests/end_to_end/test_live.py runs it shorter",
}
"""Commands of pages that are not run here, and why."""
GUARD_TIMEOUT_S = 240.0


def commands_of(block: Block) -> Iterable[Shown]:
    return commands(block) if block.language == "console" else ()


def not_run(page: str) -> list[str]:
    """Return the commands of a page that are in the table."""
    shown = [each.command for block in blocks(page) for each in commands_of(block)]
    return [command for command in shown if any(fnmatchcase(command, row) for row in NOT_RUN)]


def test_every_block_is_run_or_listed_as_not_run() -> None:
    for block in (block for page in pages() for block in blocks(page)):
        if block.language in NEVER_RUN:
            continue
        assert block.language in {"console", "python"}, (
            f"{block.place}: unknown language '{block.language}'"
        )
        if block.language == "python":
            assert block.page in PYTHON, f"{block.place} is never run"
        elif block.page not in (*ON_ONE_STACK, *ON_ANOTHER_STACK, *FROM_AN_EMPTY_FOLDER, *ANYWHERE):
            for shown in commands(block):
                assert shown.command in not_run(block.page), (
                    f"{block.page}:{shown.line} is never run"
                )


def test_every_command_listed_as_not_run_is_on_a_page() -> None:
    shown = [
        each.command for page in pages() for block in blocks(page) for each in commands_of(block)
    ]
    for row in NOT_RUN:
        assert any(fnmatchcase(command, row) for command in shown), f"no page shows '{row}'"


@pytest.mark.end_to_end
@pytest.mark.parametrize(
    "shared_pages",
    [
        ON_ONE_STACK,
        pytest.param(ON_ANOTHER_STACK, marks=pytest.mark.slow),
        FROM_AN_EMPTY_FOLDER,
    ],
    ids=["cli", "decommission", "first-store"],
)
def test_commands_on_a_cluster_print_the_shown_output(
    shared_pages: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STELE_ACTOR", "ada")
    with Reader(tmp_path) as reader:
        for page in shared_pages:
            for block in blocks(page):
                if block.language == "console":
                    reader.read(block, not_run(page))
            if page not in FROM_AN_EMPTY_FOLDER:  # that page ends without a stack
                reader.use_stack()
    assert not reader.differences, "\n\n".join(reader.differences)


@pytest.mark.parametrize("page", ANYWHERE)
def test_commands_without_a_cluster_print_the_shown_output(
    page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(REPOSITORY)
    with Reader(REPOSITORY) as reader:
        for block in blocks(page):
            if block.language == "console":
                reader.read(block, not_run(page))
    assert not reader.differences, "\n\n".join(reader.differences)


@pytest.mark.parametrize("numbers", [[], [7, -7], [1000, -1000], [1 << 40, -1 << 63]])
async def test_example_decodes_a_column_of_numbers(numbers: list[int]) -> None:
    names: dict[str, object] = {"column": NumberColumn.of(np.array(numbers, np.int64)).raw}
    await execute(python_block("docs/reference/log.md"), names)
    assert names["numbers"] == numbers


async def test_example_of_a_client_routes_requests() -> None:
    site, sent = Site(three_nodes()[0]), list[tuple[str, int]]()
    site.give(len(site.history.epochs))

    async def send(place: Place, replicas: Replicas, value: bytes) -> None:
        """Refuse the first request as one with a stale route."""
        sent.append((place.address, replicas.version))
        if len(sent) == 1:
            raise StaleRoute(replicas.epoch)

    async def fetch(place: Place, replicas: Replicas) -> tuple[int, bytes]:
        return int(place.address[-1]), b"dark and stormy"

    async with site.serving() as url:
        names: dict[str, object] = {"metadata_log_urls": [url], "send": send, "fetch": fetch}
        await execute(python_block("docs/guides/route_requests.md"), names)
    assert len(sent) >= 3
    assert names["value"] == b"dark and stormy"


@pytest.mark.broker
async def test_example_of_an_embedded_agent_serves(kafka: str, topics: str, tmp_path: Path) -> None:
    served = list[str]()

    async def serve(agent: Agent) -> None:
        served.append(agent.node_id)

    settings = NodeSettings(kafka_bootstrap=kafka, cluster=topics, node_id="n7", data_dir=tmp_path)
    names = {"settings": settings, "handlers": lambda agent: {}, "serve": serve}
    await execute(python_block("docs/reference/node.md"), names)
    assert served == ["n7"]


@pytest.mark.broker
async def test_example_of_an_embedded_store_serves(kafka: str, topics: str, tmp_path: Path) -> None:
    served = list[str]()

    async def serve(member: Member, store: object) -> None:
        served.append(f"{member.node_id} {type(store).__name__} {len(member.routes())}")

    settings = AgentSettings(kafka_bootstrap=kafka, cluster=topics, node_id="n7", data_dir=tmp_path)
    names = {
        "settings": settings,
        "open_store": Shelf,
        "address": "http://127.0.0.1:1",
        "on_ranges": print,
        "stop": Stop(),
        "serve": serve,
    }
    await execute(python_block("docs/guides/embed_agent.md"), names)
    assert served == ["n7 Shelf 5"]


async def test_example_checks_version_session_and_log_id(redis_url: str, cluster: str) -> None:
    world = await GuardedWorld.make()
    world.world.start_join()
    while not world.world.session:
        world.world.advance()
    settings = SessionGuardSettings(redis_url=redis_url, cluster=cluster)
    writer = RedisWriter(settings, world.follower, world.guard, world.proofs)
    writing = asyncio.create_task(writer.run())
    block = python_block("docs/concepts/sessions.md")
    async with Redis.from_url(redis_url) as redis:
        try:
            await wait_for_guard(redis, cluster)
            names = {
                "redis": redis,
                "cluster": cluster,
                "version": world.world.version,
                "session": world.world.session,
                "log_id": world.world.image.log_id.hex(),
            }
            await execute(block, dict(names))
            for other in ({"version": -1}, {"session": "another"}, {"log_id": "0a" * 16}):
                with pytest.raises(RefusedWrite):
                    await execute(block, names | other)
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            await writer.close()
            await world.proofs.close()


async def wait_for_guard(redis: Redis, cluster: str) -> None:
    async with asyncio.timeout(GUARD_TIMEOUT_S):
        while True:
            try:
                await read_guard(redis, cluster)
                return
            except GuardUnavailable:
                await asyncio.sleep(0.01)


def python_block(page: str) -> Block:
    (block,) = [block for block in blocks(page) if block.language == "python"]
    return block
