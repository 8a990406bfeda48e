"""Messages of a process that stopped because it lacks a feature: the checker knows only these texts."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from stele.agent.admission import JoinRejected
from stele.agent.identity import boot
from stele.domain.image import EMPTY
from stele.domain.rules.membership import check_build
from stele.runtime.settings import ConfigurationError
from stele_simulator.processes import run
from stele_simulator.processes.disaster import Disaster
from stele_simulator.processes.releases import FEATURE, NEWER, OLDER
from stele_simulator.processes.world import World


def _is_refused(folder: Path) -> Exception:
    """Return the error of a node that read its log before the feature was enabled and then announces itself."""
    features = msgspec.structs.replace(EMPTY.features, enabled=(FEATURE,))
    image = msgspec.structs.replace(EMPTY, features=features)
    refused = check_build(image, "node 'n1'", tuple(sorted(OLDER.features)), OLDER.release)
    assert refused is not None
    return JoinRejected(f"{refused.message} {refused.hint} ({refused.code})")


def _has_it_on_its_disk(folder: Path) -> Exception:
    boot(folder, "n1", "c", supported=NEWER.features).save(enabled_features=(FEATURE,))
    with pytest.raises(ConfigurationError) as raised:
        boot(folder, "n1", "c", supported=OLDER.features)
    return raised.value


def _says_nothing_more(folder: Path) -> Exception:
    return ConfigurationError(f"{FEATURE} is enabled")


@pytest.mark.parametrize(
    ("ends", "says"),
    [(_is_refused, True), (_has_it_on_its_disk, True), (_says_nothing_more, False)],
)
def test_node_that_lacks_a_feature_must_explain_the_remedy(
    ends: Callable[[Path], Exception],
    says: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def play(world: World) -> None:
        node = world.nodes[0]
        node.installed, node.ended_by = OLDER, repr(ends(tmp_path))
        world.releases.was_told = True
        assert world.releases.has_stopped(node)

    monkeypatch.setattr(run, "_run", play)
    failure = run.run_disaster_scenario(Disaster(seed=3)).failure
    assert (failure is None) is says
    assert says or (failure and failure.invariant == "releases")
