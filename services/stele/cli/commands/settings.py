"""``stele settings list|set|reset``: what the log says for the whole cluster, in force while things run."""

from __future__ import annotations

import difflib

from cyclopts import App

from stele.cli.errors import UsageError
from stele.cli.options import Change, Force, Format, ReadPoint, Where
from stele.cli.output import print_line, table
from stele.cli.reading import StateReading
from stele.domain.commands import SetSetting
from stele.domain.model.features import Setting
from stele.domain.model.settings import KNOWN

app = App(name="settings", help="Settings of the whole cluster: list, set, reset.")


@app.command(name="list")
def list_settings(
    read: ReadPoint = ReadPoint(), form: Format = Format(), where: Where = Where()
) -> None:
    """List every setting with its value, its default and its meaning."""
    with where.client() as client:
        reading = read.of(client)
        values = reading.settings()
    if form.is_document:
        at = {"epoch": reading.epoch, "state_id": reading.state_id}
        known = [
            {
                "name": name,
                "value": values.get(name, ""),
                "default": str(setting.default),
                "what": setting.counts,
            }
            for name, setting in sorted(KNOWN.items())
        ]
        form.print_document({**at, "settings": values, "known": known})
        return
    shown = table(f"settings at epoch {reading.epoch}", "setting", "value", "default", "what it is")
    for name, setting in sorted(KNOWN.items()):
        value = values.get(name, "")
        unsafe = " (unsafe)" if setting.is_unsafe(value) else ""
        shown.add_row(name, value + unsafe, str(setting.default), setting.counts)
    for name in sorted(values.keys() - KNOWN.keys()):
        shown.add_row(name, values[name], "", "no setting of this build")
    form.print_table(shown)


@app.command(name="set")
def set_(
    name: str,
    value: str,
    /,
    *,
    force: Force = False,
    change: Change = Change(),
    where: Where = Where(),
) -> None:
    """Change a setting of the cluster. Running processes apply it at once.

    Args:
        name: Name from `stele settings list`.
        value: A whole number, or one of the setting's words.
        force: Accept a value that gives up a guarantee. The history marks it as unsafe.
    """
    setting = _known(name)
    if not setting.accepts(value):
        raise UsageError(
            f"{name} cannot be '{value}': it is {setting.wanted()}.",
            f"`stele settings reset {name}` gives it its default again, {setting.default}.",
        )
    _submit(SetSetting(name, value, force), change, where)


@app.command
def reset(
    name: str,
    /,
    *,
    change: Change = Change(),
    where: Where = Where(),
) -> None:
    """Reset a setting to its default.

    Args:
        name: Name from `stele settings list`.
    """
    with where.client() as client:
        values = {} if name in KNOWN else StateReading(client).settings()
    if name not in values:
        _known(name)
    _submit(SetSetting(name, ""), change, where)


def _known(name: str) -> Setting:
    """Raises UsageError: a setting that no service reads would look effective."""
    if name in KNOWN:
        return KNOWN[name]
    near = difflib.get_close_matches(name, KNOWN)
    meant = f"Did you mean {' or '.join(near)}? " if near else ""
    raise UsageError(f"There is no setting '{name}'.", f"{meant}`stele settings list` shows all.")


def _submit(command: SetSetting, change: Change, where: Where) -> None:
    with where.client() as client:
        epoch = change.send(client, command).epoch
    shown = f"is {command.value}" if command.value else "has its default"
    print_line(f"{command.name} {shown} since epoch {epoch}")
