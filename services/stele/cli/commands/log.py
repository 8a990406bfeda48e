"""``stele log``: the log itself. Who only asks services imports nothing of what reads it from Kafka."""

from __future__ import annotations

from cyclopts import App

app = App(
    name="log", help="The log itself: its end and its history, its archive, and who reads it."
)
app.command("stele.cli.commands.log_tail:tail", help="The newest epochs, and those that come.")
app.command(
    "stele.cli.commands.log_search:search", help="Who did what, when: through the whole history."
)
app.command("stele.cli.commands.log_stats:stats", help="What the log is made of.")
app.command("stele.cli.commands.log_replay:replay", help="Fold the topic in this process alone.")
app.command(
    "stele.cli.commands.log_verify:verify_log",
    name="verify",
    help="Read and check all archives, and hold them against the topic.",
)
app.command(
    "stele.cli.commands.log_archive:snapshot",
    help="Have every catch-up replica take a snapshot now.",
)
app.command(
    "stele.cli.commands.log_archive:truncate",
    help="Delete from the topic what a majority of replicas holds.",
)
app.command("stele.cli.commands.log_archive:readers", help="Who holds up truncation.")
app.command("stele.cli.commands.log_mode:freeze", help="No command is taken until it thaws.")
app.command("stele.cli.commands.log_mode:thaw", help="Commands are taken again.")
app.command(
    "stele.cli.commands.log_mode:single_user", help="Commands of one actor alone are taken."
)
