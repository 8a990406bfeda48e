"""Waits.

The story continues when the condition holds. It fails after 200 virtual seconds without it.
"""

from functools import partial
from typing import Final

from stele.domain.image import Image
from stele.domain.names import RequestStatus
from stele_simulator.processes.releases import FEATURE, is_new
from stele_simulator.processes.stories.sentences import SentenceGroup
from stele_simulator.processes.stories.story import Story, open_states, service_of, states

sentence: Final = SentenceGroup(__doc__)
STATUSES: Final = "|".join(RequestStatus)


@sentence(r"wait ([\d.]+)", "wait 10")
def wait(story: Story, seconds: str) -> None:
    """So many virtual seconds."""
    story.run(float(seconds))


@sentence(r"until (\w+)", "until write_both_read_old")
def until_state(story: Story, state: str) -> None:
    """Some transition is in that state; `idle`: none is open."""
    story.run_until(lambda: state in open_states(story.image), lambda: states(story.image))


@sentence(r"until (\S+) in (\w+)", "until X in write_both_read_old")
def until_in(story: Story, name: str, state: str) -> None:
    """The transition of the newest request that goes by the name is in it."""

    def current() -> str:
        found = story.image.topology.of_request(story.request_of(name))
        return "in none" if found is None else str(found.state)

    story.run_until(lambda: current() == state, current)


@sentence(rf"until (\S+) is ({STATUSES})", "until X is done")
def until_request(story: Story, name: str, status: str) -> None:
    """The newest request that goes by the name is pending, running, done, failed or cancelled."""

    def current() -> str:
        request = story.image.request(story.request_of(name))
        return "unknown" if request is None else str(request.status)

    story.run_until(lambda: current() == status, current)


@sentence(r"until (\S+) is excluded", "until X is excluded")
def until_excluded(story: Story, name: str) -> None:
    """Wait until the log declares the node dead."""
    story.run_until(lambda: name in story.image.membership.excluded(), lambda: "it is not")


@sentence(r"until it waits for (\S+)", "until it waits for X")
def until_waits(story: Story, name: str) -> None:
    """The coordinator says that it misses X."""

    def missed() -> set[str]:
        waits = story.world.told_by_coordinator()
        return {blocker.node_id for wait in waits for blocker in wait.blockers}

    story.run_until(lambda: name in missed(), lambda: f"it waits for {sorted(missed())}")


@sentence(r"until all agree on the schema", "until all agree on the schema")
def until_agreed(story: Story) -> None:
    """A guard answers that all live members have applied the newest epoch."""
    witness = story.world.agreement
    asked = story.image.epoch
    story.run_until(lambda: witness.newest >= asked, lambda: f"they agree on {witness.newest}")


@sentence(r"until the log knows the release of (\w+)", "until the log knows the release of X")
def until_known(story: Story, name: str) -> None:
    """Wait until the installed release has announced itself."""
    machine = story.world.machines[name]

    def is_known() -> bool:
        return (FEATURE in features_of(story.image, name)) == is_new(machine.installed)

    story.run_until(is_known, lambda: f"it supports {features_of(story.image, name)}")


@sentence(r"until the feature is enabled", "until the feature is enabled")
def until_enabled(story: Story) -> None:
    """The log says that all may use what the older release lacks."""
    enabled = story.world.releases.is_enabled
    story.run_until(enabled, lambda: str(story.world.told_by_coordinator()))


@sentence(r"until (\w+) has stopped", "until X has stopped")
def until_stopped(story: Story, name: str) -> None:
    """It says that it lacks the feature, and reads no more."""
    machine = story.world.machines[name]
    story.run_until(
        partial(story.world.releases.has_stopped, machine),
        lambda: str(machine.failure or machine.ended_by or "it goes on"),
    )


def features_of(image: Image, name: str) -> tuple[str, ...]:
    """Return the features that a node or a service supports, by the log."""
    row = image.node(name)
    if row is not None:
        return row.supported_features
    service = image.services.services.get(service_of(image, name))
    return () if service is None else service.supported_features
