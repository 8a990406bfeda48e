"""The page of metrics agrees with the code, and the page of monitoring has every alert."""

import re

from tests.docs.metrics_page import PAGE, page_with
from tests.docs.pages import REPOSITORY


def test_page_is_up_to_date_with_the_code() -> None:
    page = PAGE.read_text()
    assert page == page_with(page), "run `python -m tests.docs.metrics_page`"


def test_monitoring_page_lists_every_alert() -> None:
    alerts = (REPOSITORY / "infra" / "prometheus" / "alerts.yml").read_text()
    page = (REPOSITORY / "docs" / "guides" / "monitor.md").read_text()
    named = re.findall(r"^ *- alert: (\w+)$", alerts, re.MULTILINE)
    assert named
    shown = re.findall(r"^\| (Stele\w+) \|", page, re.MULTILINE)
    assert sorted(shown) == sorted(named)
