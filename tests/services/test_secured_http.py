"""A cluster with HTTPS only, where changes need a token."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from subprocess import CompletedProcess, run
from typing import Any

import httpx
import pytest

from stele.cli.errors import Exit
from stele.console.access import MARK
from stele.runtime.callers import RECOVER, line_of
from stele.runtime.request_ids import new_request_id
from tests.certificates import Authority
from tests.deployment.process import Service
from tests.deployment.processes import KEYSPACE, Deployment, following

pytestmark = pytest.mark.broker

ADA, CI = "adas-token", "the-token-of-ci"
MAY = ("set_setting", RECOVER)
SETTING = {"type": "set_setting", "name": "stream_mib_per_s", "value": "50"}


class Secured:
    """Files of the servers and of the clients."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder, "authority")
        self.stranger = Authority(folder, "stranger")
        self.certificate, self.key = self.authority.give("service")
        self.callers = folder / "callers"
        self.token = folder / "token"
        self.token.write_text(f"{ADA}\n")
        self.let_in(line_of("ada", ADA), line_of("ci", CI, MAY))

    def let_in(self, *lines: str) -> None:
        self.callers.write_text("".join(f"{line}\n" for line in lines))

    def environment(self) -> dict[str, str]:
        return {
            "SSL_CERT_FILE": str(self.authority.file),
            "STELE_HTTP_TLS_CERTIFICATE_FILE": str(self.certificate),
            "STELE_HTTP_TLS_KEY_FILE": str(self.key),
            "STELE_HTTP_CALLERS_FILE": str(self.callers),
        }


@pytest.fixture
def secured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Secured:
    found = Secured(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(found.authority.file))
    return found


@pytest.fixture
async def site(
    secured: Secured, kafka: str, topics: str, redis_url: str, tmp_path: Path
) -> AsyncIterator[Deployment]:
    """Return a deployment of all services except placements. ``site`` sends the token of ada."""
    async with following(kafka, topics, redis_url, tmp_path, **secured.environment()) as found:
        found.http.headers["authorization"] = f"Bearer {ADA}"
        yield found


async def asked(
    url: str, token: str = "", body: object = None, **headers: str
) -> tuple[int, dict[str, Any]]:
    """Return the answer to a POST."""
    shown = {"authorization": f"Bearer {token}"} if token else {}
    async with httpx.AsyncClient(timeout=240) as http:
        answer = await http.post(url, json=body, headers={**headers, **shown})
    return answer.status_code, answer.json()


async def stele(log: Service, secured: Secured, *words: str) -> CompletedProcess[str]:
    command = [sys.executable, "-m", "stele.cli", *words, "--url", log.url]
    env = {**os.environ, "SSL_CERT_FILE": str(secured.authority.file), "STELE_ACTOR": ""}
    return await asyncio.to_thread(
        run, command, env=env, capture_output=True, text=True, timeout=240, check=False
    )


async def actor_of(log: Service, epoch: int) -> str:
    return str((await log.get(f"/v1/epochs/{epoch}"))["actor"])


async def test_cluster_uses_https_and_tokens(site: Deployment, secured: Secured) -> None:
    log = await site.start("metadata_log")
    site.log_url = log.url
    assert log.url.startswith("https://")
    catch_up = await site.start("catch_up")
    guard = await site.start("session_guard", catch_up_urls=catch_up.url)
    await site.start("coordinator", session_guard_urls=guard.url)
    console = await site.start("console", metadata_log_urls=log.url, console_commands=True)
    for node_id in ("n1", "n2"):
        await site.start_node(node_id, catch_up_urls=catch_up.url)
        await site.normal(node_id)
    made = await site.command(type="create_keyspace", name=KEYSPACE, replication={"dc1": 2})
    assert await actor_of(log, made["epoch"]) == "ada"
    for node_id, other in (("n1", "n2"), ("n2", "n1")):
        assert (await site.put(node_id, f"by {node_id}", b"value"))[0] == 200
        assert await site.get(other, f"by {node_id}") == (200, b"value")
    await check_callers_without_a_token_change_nothing(log)
    await check_command_line_sends_its_token(log, secured)
    await check_console_forwards_tokens(console, log)
    await check_recovery_needs_a_token(catch_up)
    await check_other_authorities_are_reported(log, secured)
    await check_withdrawn_token_is_refused_soon(log, secured)
    await check_unreadable_token_file_is_reported(log, console, secured)


async def check_callers_without_a_token_change_nothing(log: Service) -> None:
    before = (await log.get("/v1/topology?level=barrier"))["epoch"]
    claim = {"type": "claim_coordinator", "holder": "me", "term": 99}
    drop = {"type": "drop_keyspace", "name": KEYSPACE}
    for token, command, more, found in (
        ("", SETTING, {}, (401, "token_needed")),
        ("another", SETTING, {}, (401, "token_needed")),
        (ADA, SETTING, {"actor": "bob"}, (403, "other_actor")),
        (ADA, claim, {}, (403, "not_allowed")),
        (CI, drop, {}, (403, "not_allowed")),
        (CI, {"type": "no command"}, {}, (400, "invalid_request")),
        ("", {"type": "no command"}, {}, (401, "token_needed")),
    ):
        body = {"request_id": new_request_id(), "command": command, **more}
        status, answer = await asked(f"{log.url}/v1/commands", token, body)
        assert (status, answer["code"]) == found, answer
    assert (await log.get("/v1/topology?level=barrier"))["epoch"] == before


async def check_command_line_sends_its_token(log: Service, secured: Secured) -> None:
    change = ("settings", "set", "stream_mib_per_s", "40", "--reason", "slow disks")
    without = await stele(log, secured, *change)
    assert without.returncode == Exit.FAILED, without
    assert "--token-file" in without.stderr
    done = await stele(log, secured, *change, "--token-file", str(secured.token))
    assert done.returncode == Exit.OK, done
    other = await stele(log, secured, *change, "--token-file", str(secured.token), "--actor", "bob")
    assert (other.returncode, "Leave the actor out" in other.stderr) == (Exit.FAILED, True), other
    epochs = await stele(log, secured, "epochs", "--command", "set_setting", "--actor", "ada")
    assert "ada: slow disks" in " ".join(epochs.stdout.split()), epochs
    none = await stele(log, secured, *change, "--token-file", str(secured.callers))
    assert (none.returncode, "holds no token" in none.stderr) == (Exit.USAGE, True), none


async def check_console_forwards_tokens(console: Service, log: Service) -> None:
    body = {
        "operation": "create-keyspace",
        "fields": {"name": "of_the_page", "replication": "dc1=1"},
        "reason": "a page asks",
    }
    mark = {MARK: "1"}
    status, answer = await asked(f"{console.url}/api/commands", "", body, **mark)
    assert (status, answer["code"]) == (401, "token_needed")
    status, answer = await asked(f"{console.url}/api/commands", CI, body, **mark)
    assert (status, answer["code"]) == (403, "not_allowed")
    status, answer = await asked(f"{console.url}/api/commands", ADA, body, **mark)
    assert status == 200, answer
    assert await actor_of(log, answer["epoch"]) == "ada"


async def check_recovery_needs_a_token(catch_up: Service) -> None:
    for path in ("/v1/recover", "/v1/recover/check"):
        status, answer = await asked(f"{catch_up.url}{path}")
        assert (status, answer["code"]) == (401, "token_needed")
    status, answer = await asked(f"{catch_up.url}/v1/recover/check?actor=bob", CI)
    assert (status, answer["code"]) == (403, "other_actor")
    status, answer = await asked(f"{catch_up.url}/v1/recover/check", CI)
    assert (status, answer["code"]) == (409, "not_recovered"), "the log is there"


async def check_other_authorities_are_reported(log: Service, secured: Secured) -> None:
    secured.authority, own = secured.stranger, secured.authority
    told = await stele(log, secured, "nodes")
    secured.authority = own
    assert told.returncode == Exit.UNREACHABLE
    assert "SSL_CERT_FILE" in told.stderr and "trying again" not in told.stderr, told
    async with httpx.AsyncClient(timeout=240) as http:
        with pytest.raises(httpx.TransportError):
            await http.get(log.url.replace("https", "http") + "/healthz")


async def check_withdrawn_token_is_refused_soon(log: Service, secured: Secured) -> None:
    secured.let_in(line_of("ci", CI, MAY))
    await asyncio.sleep(1.1)
    for token, found in ((ADA, 401), (CI, 200)):
        body = {"request_id": new_request_id(), "command": SETTING}
        assert (await asked(f"{log.url}/v1/commands", token, body))[0] == found


async def check_unreadable_token_file_is_reported(
    log: Service, console: Service, secured: Secured
) -> None:
    """Health checks must report it before a refused caller notices."""
    secured.let_in("nobody")
    await asyncio.sleep(1.1)
    for process in (log, console):
        health = await process.get("/healthz")
        assert (health["ok"], "All requests are rejected" in health["reason"]) == (True, True), (
            health
        )
    told = await stele(
        log, secured, "settings", "reset", "stream_mib_per_s", "--token-file", str(secured.token)
    )
    assert told.returncode == Exit.UNREACHABLE
    assert "trying again" not in told.stderr and str(secured.callers) in told.stderr, told
