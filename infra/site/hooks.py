"""Hooks of MkDocs: copies of the scripts of the site, so that a reader needs no network.

``iframe-worker.js`` lets the search run from the disk. Mermaid draws the diagrams; ``make docs`` fetches it
where npm is installed, and without it diagrams are shown as text.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SCRIPTS = {
    "assets/iframe-worker.js": HERE / "iframe-worker.js",
    "assets/mermaid.min.js": HERE.parents[1] / ".cache" / "site" / "mermaid.min.js",
}
"""Scripts of the site and their sources."""
MERMAID = "assets/mermaid.min.js"


def on_config(config: Any) -> Any:
    """Load Mermaid on every page, before the theme would load it from the network."""
    if SCRIPTS[MERMAID].exists():
        config.extra_javascript.append(MERMAID)
    else:  # the theme draws elements of the class mermaid only
        for fence in config.mdx_configs["pymdownx.superfences"]["custom_fences"]:
            fence["class"] = "diagram"
    return config


def on_post_build(config: Any) -> None:
    """Put the scripts into the site."""
    for name, source in SCRIPTS.items():
        if source.exists():
            target = Path(config.site_dir) / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
