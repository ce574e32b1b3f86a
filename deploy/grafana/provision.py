"""Writes the dashboard and a provider file where Grafana looks for them, beside those that Ray writes."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import yaml

from deploy.grafana.panels import ROWS, Panel, Row

UID = "characters"
_WIDTH, _HEIGHT = 12, 8  # of a panel; the page is 24 wide
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def provision(grafana: Path) -> Path:
    """Add our dashboard to a folder of Grafana's configuration.

    Args:
        grafana: the folder that holds `provisioning/`; Ray's own is `metrics/grafana` below its session folder.

    Returns:
        The dashboard's file.
    """
    boards = grafana / "characters"
    providers = grafana / "provisioning" / "dashboards"
    for folder in (boards, providers):
        folder.mkdir(parents=True, exist_ok=True)
    provider = {"name": "characters", "folder": "Characters", "type": "file", "options": {"path": str(boards)}}
    (providers / "characters.yml").write_text(yaml.safe_dump({"apiVersion": 1, "providers": [provider]}))
    file = boards / "characters.json"
    file.write_text(json.dumps(dashboard(), indent=1) + "\n")
    return file


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana's JSON."""
    ids, panels, y = count(1), list[dict[str, Any]](), 0
    for row in ROWS:
        panels.append(_heading(row, next(ids), y))
        y += 1
        for i, panel in enumerate(row.panels):
            at = {"x": i % 2 * _WIDTH, "y": y + i // 2 * _HEIGHT, "w": _WIDTH, "h": _HEIGHT}
            panels.append(_panel(panel, next(ids), at))
        y += -(-len(row.panels) // 2) * _HEIGHT
    return {
        "uid": UID,
        "title": "Characters",
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}]},
        "panels": panels,
    }


def _heading(row: Row, number: int, y: int) -> dict[str, Any]:
    at = {"x": 0, "y": y, "w": 24, "h": 1}
    return {"id": number, "type": "row", "title": row.title, "collapsed": False, "gridPos": at, "panels": []}


def _panel(panel: Panel, number: int, at: dict[str, int]) -> dict[str, Any]:
    heatmap = panel.kind == "heatmap"
    defaults: dict[str, Any] = {"unit": panel.unit}
    if panel.line is not None:
        steps = [{"color": "transparent", "value": None}, {"color": "red", "value": panel.line}]
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
        defaults["custom"] = {"thresholdsStyle": {"mode": "line"}}
    if panel.nothing:
        defaults["noValue"] = panel.nothing
    if not heatmap:
        defaults["min"] = 0
    targets = [
        {
            "refId": chr(ord("A") + i),
            "datasource": _SOURCE,
            "expr": query.promql,
            "legendFormat": query.legend,
            "format": "heatmap" if heatmap else "time_series",
        }
        for i, query in enumerate(panel.queries)
    ]
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "gridPos": at,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {"yAxis": {"unit": panel.unit}} if heatmap else {},
        "targets": targets,
    }
