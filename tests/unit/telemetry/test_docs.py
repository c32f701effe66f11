"""The page about metrics and the dashboard say what the program has."""

from __future__ import annotations

import json
import re
from pathlib import Path

from support.metrics_docs import PAGE, names, page

DASHBOARD = Path(__file__).parents[3] / "docs/how_to/grafana-dashboard.json"


def test_metrics_page_is_current() -> None:
    assert PAGE.read_text() == page(), "run: python tests/support/metrics_docs.py"


def test_dashboard_asks_for_metrics_that_exist() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    asked = {
        name
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
        for name in re.findall(r"triolet:\w+", target["expr"])
    }
    assert asked <= names()
    assert len(asked) > 20
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))
