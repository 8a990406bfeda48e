"""What the demo claims, and whether it held: the report that it leaves behind."""

from __future__ import annotations

from pathlib import Path

import msgspec


class Check(msgspec.Struct, frozen=True):
    """One claim: ``detail`` says what was compared with what."""

    name: str
    held: bool
    detail: str


class StepTime(msgspec.Struct, frozen=True):
    name: str
    took_s: float


class Report(msgspec.Struct):
    """All of a run; ``held`` only when every check held and every step ran to its end."""

    held: bool = False
    failure: str = ""
    took_s: float = 0.0
    checks: list[Check] = []
    steps: list[StepTime] = []
    figures: dict[str, float | int | str] = {}

    def close(self, took_s: float) -> None:
        self.took_s = round(took_s, 1)
        self.held = not self.failure and all(check.held for check in self.checks)

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")


def read_report(path: Path) -> Report:
    return msgspec.json.decode(path.read_bytes(), type=Report)
