"""The operator: `stele recover` as the command line does it, between the events of the world."""

import re
from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final, cast

from stele.cli.client import Client
from stele.cli.commands.recover import Left, ask, compared, question
from stele.cli.errors import CliError
from stele.domain.base import Rejection
from stele.domain.recovery import HistoryChoice, choose
from stele_simulator.kernel import Owner, us
from stele_simulator.processes.recoveries import Asked
from stele_simulator.processes.web import REFUSED

if TYPE_CHECKING:
    from stele_simulator.processes.world import World

WAIT_S: Final = 15.0
RECOVER_S: Final = 40.0
STEP_US: Final = 20_000
OK: Final = 200
FOR_PEOPLE: Final = ("two_histories", "two_logs", "unproven")
BEFORE: Final = re.compile(
    "recovered before, .* continues after epoch [0-9]+ as log ([0-9a-f]{32})"
)


class OperatorClient:
    """The part of the command line's client that a recovery needs. Waiting lets the simulation continue."""

    def __init__(self, world: "World", name: str) -> None:
        urls = {
            "metadata-log": [each.url for each in world.logs],
            "coordinator": [each.url for each in world.coordinators],
        }
        self.places = SimpleNamespace(urls=urls)
        self.asked = Asked()
        self._world = world
        self._owner = Owner(name)

    def get_bytes(self, url: str) -> bytes:
        """Raises CliError."""
        answers = self.send(url, {}, None)
        content = self.wait(url, answers, WAIT_S)
        name = url.split("/")[2]
        held = self._world.witness.recoveries.served_held.get(name)
        if held is not None:
            self.asked.held[name] = held
            self._world.witness.recoveries.answered(name, held)
        return content

    def send(
        self, url: str, params: Mapping[str, str], body: bytes | None
    ) -> list[tuple[int, bytes]]:
        """The list gets the answer."""
        answers: list[tuple[int, bytes]] = []
        self._world.witness.recoveries.served_held.pop(url.split("/")[2], None)
        self._world.web.ask(
            self._owner,
            url,
            lambda status, content: answers.append((status, content)),
            params,
            {},
            body,
        )
        return answers

    def wait(self, url: str, answers: list[tuple[int, bytes]], limit_s: float) -> bytes:
        """Raises CliError."""
        kernel = self._world.kernel
        deadline_us = kernel.now_us + us(limit_s)
        while not answers and kernel.now_us < deadline_us:
            kernel.run_until(kernel.now_us + STEP_US)
        if not answers or answers[0][0] == REFUSED:
            raise CliError(f"{url} does not answer.", "Is the process running?")
        status, content = answers[0]
        if status != OK:
            raise CliError(f"{url} answered {status}: {content.decode()[:300]}", "")
        return content


class Operator:
    """Recovers the log, or says why not."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._chance = world.kernel.random("operator")

    def recover(self, *, twice: bool = False, force: bool = False) -> str:
        """Why it is not recovered; empty when a replica says that it is. ``twice``: two operators at once."""
        world = self._world
        waiting: list[tuple[OperatorClient, Left, str, list[tuple[int, bytes]]]] = []
        for name in ("operator", "another operator") if twice else ("operator",):
            client = OperatorClient(world, name)
            chosen = self._choose(client)
            if isinstance(chosen, str):
                return chosen
            left, choice = chosen
            world.witness.recoveries.asks(client.asked)
            url, body, params = question(left, choice, "it was lost", "operator", force=force)
            target, recover_url = self._target(url, left, twice=bool(waiting)), "/v1/recover"
            given = {each: str(value) for each, value in params.items()}
            world.trace(f"{name} recovers from {target}, after epoch {choice.epoch}")
            waiting.append((client, left, target, client.send(target + recover_url, given, body)))
        said = list[str]()
        unfinished = False
        for client, left, target, answers in waiting:
            try:
                client.wait(target, answers, RECOVER_S)
            except CliError as error:
                said.append(error.message)
                unfinished |= self._is_of_nobody(left, error.message)
        world.trace(f"recovered: {said or 'yes'}")
        if unfinished and len(said) == len(waiting):
            world.lose_topic(silent=False)
        return "" if len(said) < len(waiting) else "; ".join(said)

    def _is_of_nobody(self, left: Left, said: str) -> bool:
        """Return whether all replicas answered, and an earlier recovery, which blocks this one, began a log
        of which no replica has anything: its writer died. The documentation says to delete the topic in this
        case.
        """
        found = BEFORE.search(said)
        if found is None or not {*left.urls.values()}.issuperset(self._world.replica_urls):
            return False
        return not any(
            found[1] in (each.log_id, *(before.log_id for before in each.incarnations))
            for each in left.sources
        )

    def _choose(self, client: OperatorClient) -> "tuple[Left, HistoryChoice] | str":
        as_client = cast(Client, client)
        left = compared(as_client, ask(as_client, self._world.replica_urls))
        chosen = choose(left.extended())
        if isinstance(chosen, Rejection) and chosen.code in FOR_PEOPLE:
            named = [each.name for each in left.sources if each.last_image]
            take = self._chance.choice(sorted(named))
            client.asked.taken = take.split(" ")[0]
            self._world.trace(f"{chosen.code}: {take} is taken. {chosen.message}"[:300])
            chosen = choose(left.extended(), take)
        if isinstance(chosen, Rejection):
            return f"{chosen.message} {chosen.hint}"
        return left, chosen

    def _target(self, url: str, left: Left, *, twice: bool) -> str:
        """The second one asks another replica, if there is one."""
        others = sorted({*left.urls.values()} - {url})
        return self._chance.choice(others) if twice and others else url
