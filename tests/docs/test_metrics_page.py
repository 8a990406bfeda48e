"""The page of metrics is what the code declares, and the page of monitoring has every alert."""

import re

from tests.docs.metrics_page import PAGE, page_with
from tests.docs.pages import REPOSITORY


def test_the_page_is_made_from_the_code() -> None:
    page = PAGE.read_text()
    assert page == page_with(page), "python -m tests.docs.metrics_page writes it anew"


def test_every_alert_is_on_the_page_of_monitoring() -> None:
    alerts = (REPOSITORY / "infra" / "prometheus" / "alerts.yml").read_text()
    page = (REPOSITORY / "docs" / "guides" / "monitor.md").read_text()
    named = re.findall(r"^ *- alert: (\w+)$", alerts, re.MULTILINE)
    assert named
    shown = re.findall(r"^\| (Stele\w+) \|", page, re.MULTILINE)
    assert sorted(shown) == sorted(named)
