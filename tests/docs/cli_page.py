"""The generated part of docs/reference/cli.md: ``python -m tests.docs.cli_page`` writes it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from cyclopts import App
from docstring_parser import Docstring, parse, parse_from_object

from stele.cli.examples import examples
from stele.cli.main import MOST_EXAMPLES, build_app
from tests.docs.pages import REPOSITORY

PAGE = REPOSITORY / "docs" / "reference" / "cli.md"


class Option(NamedTuple):
    """One parameter of a command. ``group`` names the class of options that it belongs to, if any."""

    names: str
    default: str
    text: str
    group: str


def commands() -> Iterator[tuple[str, App]]:
    """Yield every command with its whole name, in the order of the help."""
    for name in build_app():
        if not name.startswith("-"):  # each command has its own help
            yield from _below(build_app(name)[name], ("stele", name))


def _below(app: App, path: tuple[str, ...]) -> Iterator[tuple[str, App]]:
    if app.default_command is not None:
        yield " ".join(path), app
    for name in app:
        if not name.startswith("-"):
            yield from _below(app[name], (*path, name))


def options(app: App, texts: Mapping[str, str]) -> Iterator[Option]:
    """Yield the parameters of a command. Those of shared classes have the name of the class."""
    group: Any = None
    for argument in app.assemble_argument_collection():
        if argument.names == ("*",):
            group = argument.hint
            continue
        shared = bool(argument.keys)
        known = _texts(parse_from_object(group)) if shared else texts
        own = argument.keys[-1] if shared else argument.field_info.name
        is_word = "POSITIONAL" in str(argument.field_info.kind) and not shared
        names = own.upper() if is_word else ", ".join(argument.names)
        value = argument.field_info.default
        empty = value in (inspect.Parameter.empty, None, "", (), False) or argument.required
        default = "" if empty else f"`{value}`"
        yield Option(names, default, known.get(own, ""), group.__name__ if shared else "")


def _texts(doc: Docstring) -> dict[str, str]:
    return {each.arg_name: " ".join((each.description or "").split()) for each in doc.params}


def sections() -> Iterator[str]:
    shared = dict[str, list[Option]]()
    for name, command in commands():
        doc = parse(command.help or "")
        every = [*options(command, _texts(doc))]
        for each in every:
            if each.group and each not in shared.setdefault(each.group, []):
                shared[each.group].append(each)
        groups = dict.fromkeys(each.group for each in every if each.group)
        words = [each.names for each in every if each.names.isupper() and each.names[0] != "-"]
        first, rest = doc.short_description or "", doc.long_description or ""
        text = f"{first}\n\n{rest}" if doc.blank_after_short_description else f"{first} {rest}"
        yield f"### {' '.join((name, *words))}\n\n"
        yield from (f"{_escape(each)}\n\n" for each in text.split("\n\n") if each.strip())
        yield from _table([each for each in every if not each.group])
        if groups:
            yield f"Shared options: {', '.join(groups)}.\n\n"
        yield "\n".join(["```text", *examples(*name.split()[1:])[:MOST_EXAMPLES], "```\n\n"])
    yield "## Shared options\n\n"
    for name, rows in shared.items():
        yield f"### {name}\n\n"
        yield from _table(rows)


def _table(rows: list[Option]) -> Iterator[str]:
    if rows:
        yield "| parameter | default | |\n|---|---|---|\n"
        for each in rows:
            yield f"| `{each.names}` | {each.default} | {_escape(each.text)} |\n"
        yield "\n"


def _escape(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
