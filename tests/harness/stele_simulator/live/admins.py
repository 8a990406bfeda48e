"""Those who ask for small things: settings, keyspaces that come and go, and what must be refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from stele.domain.commands import (
    AnyCommand,
    Cancel,
    CreateKeyspace,
    DropKeyspace,
    EnableFeatures,
    Join,
    Leave,
    SetSetting,
)
from stele.domain.image import Image
from stele_simulator.live.admin import Admin
from stele_simulator.live.command_sender import CommandSender

MEAN_PAUSE_S: Final = 0.6
OTHER_KEYSPACES: Final = 3


class Admins(Admin):
    """Random small changes."""

    def __init__(self, sender: CommandSender, image: Callable[[], Image], seed: int) -> None:
        super().__init__(sender, image, seed, MEAN_PAUSE_S)
        self._made = 0

    async def _change(self) -> None:
        await self._sender.ask(self._some_command(), "change")

    def _some_command(self) -> AnyCommand:
        self._made += 1
        others = sorted(k for k in self._image().schema.ids if k.startswith("other"))
        invalid: list[AnyCommand] = [
            Leave(node_id="nobody"),
            Cancel(target="no-such-request"),
            CreateKeyspace(name="data", replication={"dc1": 3}),
            DropKeyspace(name="never-made"),
            EnableFeatures(features=("no_such_feature",)),
            Join(node_id="stranger", cluster="elsewhere", address="http://x", dc="dc1", rack="r1"),
        ]
        dice = self._chance.random()
        if dice < 0.25:
            return self._chance.choice(invalid)
        if dice < 0.45:
            if len(others) >= OTHER_KEYSPACES:
                return DropKeyspace(name=self._chance.choice(others))
            rf = self._chance.randint(1, 3)
            return CreateKeyspace(name=f"other{self._made}", replication={"dc1": rf})
        return SetSetting(name=f"setting{self._chance.randrange(4)}", value=f"value{self._made}")
