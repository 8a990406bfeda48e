"""``python -m stele.sim`` is ``stele sim``."""

from stele.cli.commands.sim import app

if __name__ == "__main__":
    app()
