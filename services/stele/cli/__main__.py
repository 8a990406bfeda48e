"""``python -m stele.cli`` is ``stele``."""

from stele.cli.main import main

if __name__ == "__main__":
    main()
