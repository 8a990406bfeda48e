"""``stele token``, and the token file of other commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from stele.cli.errors import Exit
from stele.runtime.callers import read_callers
from stele.runtime.tokens import digest_of
from tests.cli.conftest import Stele


def test_token_file_is_private_and_matches_the_printed_line(stele: Stele, tmp_path: Path) -> None:
    file = tmp_path / "ada.token"
    ran = stele("token", "ada", str(file))
    assert ran.exit_code == Exit.OK, ran.err
    token = file.read_text().strip()
    assert read_callers(ran.out)[digest_of(token)].name == "ada"
    assert file.stat().st_mode & 0o777 == 0o600
    assert token not in ran.out + ran.err


def test_token_can_be_limited_to_some_commands(stele: Stele, tmp_path: Path) -> None:
    file = tmp_path / "ci.token"
    ran = stele("token", "ci", str(file), "--may", "create_table", "--may", "recover")
    assert read_callers(ran.out)[digest_of(file.read_text().strip())].may == {
        "create_table",
        "recover",
    }


def test_existing_token_file_is_not_overwritten(stele: Stele, tmp_path: Path) -> None:
    file = tmp_path / "ada.token"
    file.write_text("a token")
    ran = stele("token", "ada", str(file))
    assert (ran.exit_code, file.read_text()) == (Exit.FAILED, "a token")
    assert "exists, and is not overwritten" in ran.err


@pytest.mark.parametrize(
    ("words", "problem"),
    [(("two words",), "is no name"), (("ada", "--may", "drop_all"), "no command drop_all")],
)
def test_invalid_name_or_command_creates_no_token_file(
    stele: Stele, tmp_path: Path, words: tuple[str, ...], problem: str
) -> None:
    file = tmp_path / "ada.token"
    name, *may = words
    ran = stele("token", name, str(file), *may)
    assert (ran.exit_code, file.exists()) == (Exit.USAGE, False)
    assert problem in ran.err


def test_file_without_a_token_is_a_usage_error(
    stele: Stele, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STELE_TOKEN_FILE", str(tmp_path / "callers"))
    (tmp_path / "callers").write_text("ada 1234\n")
    ran = stele("keyspace", "create", "library", "--replication", "dc1=1")
    assert ran.exit_code == Exit.USAGE
    assert "callers holds no token" in ran.err
