"""Pictures of the console in the docs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.console.pictures import MOST_BYTES, PICTURES, ROOT, take


def test_docs_show_every_picture_and_each_is_small() -> None:
    pages = (ROOT / "docs" / "guides" / "console_tour.md").read_text()
    pictures = sorted(PICTURES.glob("console-*"))
    assert len(pictures) >= 2 * 8
    for path in pictures:
        assert path.stat().st_size <= MOST_BYTES, path.name
        assert f"../pictures/{path.name}" in pages, path.name


@pytest.mark.slow
@pytest.mark.browser
def test_every_page_has_a_picture_in_both_themes(tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    taken = take(tmp_path / "cluster", folder)
    assert {path.name for path in taken} == {path.name for path in PICTURES.glob("console-*")}
    for path in taken:
        data = path.read_bytes()
        assert data[:4] + data[8:12] == b"RIFFWEBP"
        assert len(data) <= MOST_BYTES, path.name
