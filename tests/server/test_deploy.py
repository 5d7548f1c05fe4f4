"""The files of deploy/ speak of metrics that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.server.wire import ask, fake_app
from tests.unit.api.fakes import always

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "deploy" / "grafana" / "octavo.json"
_METRIC = re.compile(r"\b(?:vllm|octavo):\w+")


def known() -> dict[str, set[str]]:
    """The samples of /metrics, and the labels each has."""
    text = ask(fake_app(always("x")), "GET", "/metrics").text
    return {
        sample.name: set(sample.labels)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def dashboard() -> dict[str, Any]:
    return json.loads(DASHBOARD.read_text())  # type: ignore[no-any-return]


def test_all_that_the_dashboard_asks_for_exists() -> None:
    samples = known()
    asked = set(_METRIC.findall(DASHBOARD.read_text()))
    assert len(asked) > 25
    assert not asked - samples.keys()
    for panel in dashboard()["panels"]:
        for target in panel["targets"]:
            names = _METRIC.findall(target["expr"])
            for by in re.findall(r"by \((\w+)\)", target["expr"]):
                assert all(by in samples[name] for name in names), (panel["title"], by)
            for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
                assert f"by ({label})" in target["expr"], panel["title"]
            assert target["expr"].count("(") == target["expr"].count(")")


def test_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_the_document_explains_every_metric() -> None:
    text = ask(fake_app(always("x")), "GET", "/metrics").text
    document = (ROOT / "docs" / "observability.md").read_text()
    names = {family.name for family in text_string_to_metric_families(text)}
    assert not {name for name in names if f"`{name}`" not in document}
    assert not set(re.findall(r"`((?:vllm|octavo):\w+)`", document)) - names
