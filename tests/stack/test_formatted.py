"""A data directory of a broker is formatted once, and then copied."""

from collections.abc import Callable
from pathlib import Path

import pytest

from stele.stack.broker import MARK, format_once

CLUSTER = "one"


class Formatting:
    """Replaces Kafka's tool, and counts its calls."""

    def __init__(self, root: Path) -> None:
        self.jars, self.times = root / "jars", 0
        (self.jars / "modules").mkdir(parents=True)
        (self.jars / "modules/one.jar").touch()

    def of(self, data: Path, node_id: int = 1) -> list[str]:
        def run() -> None:
            self.times += 1
            data.mkdir(parents=True)
            (data / MARK).write_text(f"cluster.id={CLUSTER}\ndirectory.id={self.times}\n")
            (data / "bootstrap.checkpoint").write_bytes(b"\x00")

        data.parent.mkdir(parents=True, exist_ok=True)
        format_once(data, self.jars, CLUSTER, node_id, run)
        return sorted(path.name for path in data.iterdir())


@pytest.fixture
def formatting(tmp_path: Path) -> Formatting:
    return Formatting(tmp_path)


def test_second_directory_is_an_independent_copy(formatting: Formatting, tmp_path: Path) -> None:
    first, second = tmp_path / "a/data", tmp_path / "b/data"
    assert formatting.of(first) == formatting.of(second) == ["bootstrap.checkpoint", MARK]
    assert formatting.times == 1
    (first / MARK).write_text("something else")
    assert f"cluster.id={CLUSTER}" in (second / MARK).read_text()
    assert {path.name for path in (tmp_path / "b").iterdir()} == {"data"}


def _more_jars(formatting: Formatting) -> None:
    (formatting.jars / "modules/two.jar").touch()


def _cut(formatting: Formatting) -> None:
    """Truncate the file, as a power failure does with an unsynced file."""
    (kept,) = formatting.jars.glob("formatted-*")
    (kept / MARK).write_text("")


def _half_gone(formatting: Formatting) -> None:
    (kept,) = formatting.jars.glob("formatted-*")
    (kept / MARK).unlink()


@pytest.mark.parametrize("change", [_more_jars, _cut, _half_gone])
def test_outdated_or_damaged_template_is_formatted_again(
    change: Callable[[Formatting], None], formatting: Formatting, tmp_path: Path
) -> None:
    formatting.of(tmp_path / "a/data")
    change(formatting)
    assert formatting.of(tmp_path / "b/data") == ["bootstrap.checkpoint", MARK]
    assert formatting.times == 2


def test_each_broker_id_has_its_own_template(formatting: Formatting, tmp_path: Path) -> None:
    for node_id in (1, 2):
        formatting.of(tmp_path / f"{node_id}/data", node_id)
    assert formatting.times == 2


def test_unwritable_template_folder_is_not_a_failure(
    formatting: Formatting, tmp_path: Path
) -> None:
    formatting.jars = tmp_path / "away"
    formatting.of(tmp_path / "a/data")
    formatting.of(tmp_path / "b/data")
    assert formatting.times == 2
