"""``python -m stele_simulator`` is ``stele sim``."""

from stele_simulator.command import app

if __name__ == "__main__":
    app()
