"""Crashed brokers and Redis of a stack are restarted. Stopped ones are not."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stele.cli.places import read_stack_file
from stele_harness.stack.broker import Broker, BrokerCluster
from stele_harness.stack.foreground import StackOptions
from stele_harness.stack.lifecycle import STOP_DEADLINE_S, wait_ready
from stele_harness.stack.process import Program, spawn
from stele_harness.stack.redis import NAME, RedisServer
from stele_harness.stack.servers import Server, Servers
from stele_harness.stack.stack import SERVICES
from stele_harness.stack.supervisor import RESTARTS_PER_MINUTE, ProcessState
from tests.polling import wait_until

ALL_BUT_METADATA_LOG = tuple(spec.name for spec in SERVICES if spec.name != "metadata-log")


def broker(directory: Path) -> Broker:
    (found,) = BrokerCluster(directory).brokers
    return found


@pytest.fixture(params=[pytest.param(broker, marks=pytest.mark.broker), RedisServer])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    made: Server = request.param(tmp_path)
    try:
        yield made
    finally:
        made.stop()


def test_crashed_server_is_restarted_at_its_address(server: Server) -> None:
    servers = Servers([server])
    servers.start(server.name)
    first, address = server.pid or 0, server.address_text
    assert not servers.look(), "it runs"
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: servers.look() and servers.restarts(server.name) == 1, "a start")
    server.wait_ready()
    assert server.pid != first
    assert server.address_text == address
    assert servers.state(server.name) is ProcessState.RUNNING


@pytest.mark.parametrize("end", [Servers.stop, Servers.kill])
def test_server_stopped_or_killed_on_purpose_stays_down(
    tmp_path: Path, end: Callable[[Servers, str], None]
) -> None:
    server = RedisServer(tmp_path)
    servers = Servers([server])
    servers.start(NAME)
    try:
        end(servers, NAME)
        assert not servers.look()
        assert not server.is_running()
        assert servers.state(NAME) is ProcessState.STOPPED
        servers.start(NAME)
        assert server.is_running()
        assert servers.state(NAME) is ProcessState.RUNNING
    finally:
        server.stop()


def test_server_that_keeps_ending_is_given_up_and_can_be_started(tmp_path: Path) -> None:
    now_s = 0.0
    server, other = RedisServer(tmp_path / "run"), RedisServer(tmp_path / "other")
    server.port = other.port
    servers = Servers([server], lambda: now_s)
    other.start()
    other.wait_ready()
    try:
        server.start()
        while servers.state(NAME) is not ProcessState.GIVEN_UP:
            if servers.state(NAME) is ProcessState.RUNNING:
                wait_until(lambda: not server.is_running(), "its end")
            now_s += 0.1
            servers.look()
        assert servers.restarts(NAME) == RESTARTS_PER_MINUTE
        assert now_s < 60
        other.stop()
        servers.start(NAME)
        assert server.is_running()
    finally:
        server.stop()
        other.stop()


@pytest.mark.broker
def test_stack_process_restarts_its_broker_and_redis(tmp_path: Path) -> None:
    """The stack runs as with `stele stack up`."""
    options = StackOptions(directory=tmp_path / "run", nodes=0, without=ALL_BUT_METADATA_LOG)
    log = tmp_path / "stack.log"
    process = spawn(Program("stack", options.arguments(), log, log))
    try:
        stack = wait_ready(options.directory, process, lambda _: None)
        for pid in (stack.brokers[0].pid, stack.redis.pid):
            os.kill(pid or 0, signal.SIGKILL)
        wait_until(lambda: all(restarts(options.directory)), "both are started again")
    finally:
        process.stop(STOP_DEADLINE_S)


def restarts(directory: Path) -> list[int]:
    """Return the restarts of the broker and of Redis by `stele stack status`."""
    stack = read_stack_file(directory)
    assert stack is not None
    return [*(broker.restarts for broker in stack.brokers), stack.redis.restarts]
