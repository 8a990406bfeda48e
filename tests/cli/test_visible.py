"""Text from the log cannot control the terminal of its reader."""

from __future__ import annotations

import json

import pytest
from rich.table import Table
from rich.text import Text

from stele.cli.output import console, print_value_as_json
from stele.words.units import visible

HOSTILE = "no\x1b[2J\x1b]0;owned\x07\x9b31m\u202eesrever\u2066\x00, tab\tand\nline"
ACTING = "\x1b\x07\x9b\u202e\u2066\x00"


def shown(capsys: pytest.CaptureFixture[str]) -> str:
    text = capsys.readouterr().out
    assert not [c for c in ACTING if c in text], text
    return text


def test_control_characters_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    console().print(Text(HOSTILE), soft_wrap=True)
    text = shown(capsys)
    assert "no\\u001b[2J\\u001b]0;owned" in text
    assert "\\u202eesrever" in text
    assert text.endswith("and\nline\n")


def test_control_characters_in_tables_and_strings_are_escaped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = Table(HOSTILE)
    table.add_row(HOSTILE, Text(HOSTILE, style="bold"))
    console().print(table)
    console().print(HOSTILE, markup=False)
    assert "owned" in shown(capsys)


def test_names_with_colons_are_not_replaced_by_emoji(capsys: pytest.CaptureFixture[str]) -> None:
    console().print(Table(":key:"), "by :bug:")
    text = shown(capsys)
    assert ":key:" in text and "by :bug:" in text


def test_styles_of_the_program_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    out = console()
    with out.capture() as found:
        out.print(Text("a\x1b[2J", style="bold red"))
    assert found.get() == "\x1b[1;31ma\\u001b[2J\x1b[0m\n"


def test_escaped_json_has_the_same_value(capsys: pytest.CaptureFixture[str]) -> None:
    print_value_as_json({"reason": HOSTILE})
    assert json.loads(shown(capsys)) == {"reason": HOSTILE}
    assert json.loads(visible(json.dumps([HOSTILE], ensure_ascii=False))) == [HOSTILE]
