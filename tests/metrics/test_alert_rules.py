"""The alert rules and the dashboard: every name in them is exported, and their expressions are
evaluated by Prometheus' own `promtool`, on the series of alert_series.yml and on recorded ones."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.servers import require
from tests.support.servers.prometheus_tools import find_promtool, promtool

from oncekey import Once
from oncekey.metrics.event_counts import ALIASES
from oncekey.metrics.exporter import StoreCollector, make_registry, text_of
from oncekey.metrics.prometheus import PrometheusMetrics
from oncekey.metrics.store_gauges import GAUGE_NAMES
from oncekey.queues.outbox import Outbox

FILES = files("oncekey.metrics") / "files"
RULES = yaml.safe_load((FILES / "alerts.yml").read_text(encoding="utf-8"))
DASHBOARD = json.loads((FILES / "grafana.json").read_text(encoding="utf-8"))
SERIES = yaml.safe_load((Path(__file__).parent / "alert_series.yml").read_text(encoding="utf-8"))
NAME = re.compile(r"\b(?:oncekey|idempotency)[_:][a-z0-9_:]+")
SCRAPES = 12

Recorded = dict[str, list[float]]


def rules(kind: str) -> dict[str, dict[str, Any]]:
    """The rules of one kind, "alert" or "record", by name."""
    every = [rule for group in RULES["groups"] for rule in group["rules"]]
    return {rule[kind]: rule for rule in every if kind in rule}


def expressions_of_the_dashboard() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """What Prometheus would have scraped, once a minute, from an engine and from its exporter."""
    url = f"sqlite:///{tmp_path_factory.mktemp('recorded') / 'keys.db'}"
    values: Recorded = {}
    with Once(url, cache=0) as once:
        Outbox(once).create_table()
        metrics = CollectorRegistry()
        PrometheusMetrics(once, registry=metrics)
        collector = StoreCollector(once._store, "sqlite")
        registry = make_registry(collector)
        for minute in range(SCRAPES):
            for number in range(3):
                once.run("charge", f"order-{minute}-{number}", lambda attempt: 1)
                once.run("charge", f"order-{minute}-0", lambda attempt: 1)
            collector.read()
            _record(values, generate_latest(metrics).decode() + text_of(registry))
    return values


def _record(values: Recorded, text: str) -> None:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f'{key}="{value}"' for key, value in sorted(sample.labels.items()))
            values.setdefault(f"{sample.name}{{{labels}}}", []).append(sample.value)


# --- names ----------------------------------------------------------------------------------------


def test_every_name_in_rules_and_dashboard_is_exported(recorded: Recorded) -> None:
    exported = {series.partition("{")[0] for series in recorded}
    assert exported >= set(GAUGE_NAMES)
    expressions = [
        *(rule["expr"] for kind in ("alert", "record") for rule in rules(kind).values()),
        *expressions_of_the_dashboard(),
    ]
    used = {name for expression in expressions for name in NAME.findall(expression)}
    assert used - exported - rules("record").keys() == set()


def test_every_alias_is_a_recorded_series_of_that_name() -> None:
    for alias, outcome in ALIASES.items():
        rule = rules("record")[f"{alias.replace('.', '_')}_total"]
        assert f'outcome="{outcome}"' in rule["expr"]


def test_every_alert_is_explained_on_its_page() -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/alerts.md").read_text(encoding="utf-8")
    assert re.findall(r"^## `(\w+)`", page, re.M) == list(rules("alert"))


# --- expressions ----------------------------------------------------------------------------------


def run_promtool(folder: Path, tests: list[dict[str, Any]]) -> None:
    """Evaluate tests against the alert rules; fails with what promtool says."""
    require(find_promtool)
    (folder / "alerts.yml").write_text((FILES / "alerts.yml").read_text(encoding="utf-8"))
    file = folder / "tests.yml"
    file.write_text(yaml.safe_dump({"rule_files": ["alerts.yml"], "tests": tests}))
    code, said = promtool("test", "rules", file)
    assert code == 0, said


def input_series(series: dict[str, str]) -> list[dict[str, str]]:
    return [{"series": name, "values": str(values)} for name, values in series.items()]


def test_the_rules_are_valid(tmp_path: Path) -> None:
    require(find_promtool)
    (tmp_path / "alerts.yml").write_text((FILES / "alerts.yml").read_text(encoding="utf-8"))
    code, said = promtool("check", "rules", tmp_path / "alerts.yml")
    assert code == 0, said


def test_every_alert_fires_on_its_series_and_says_what_is_wrong(tmp_path: Path) -> None:
    assert SERIES["alerts"].keys() == rules("alert").keys()
    tests = []
    for name, case in SERIES["alerts"].items():
        rule = rules("alert")[name]
        expected = {
            "exp_labels": {**case["labels"], **rule["labels"]},
            "exp_annotations": {"summary": case["summary"]},
        }
        check = {"eval_time": case["at"], "alertname": name, "exp_alerts": [expected]}
        tests.append(
            {
                "name": name,
                "interval": SERIES["interval"],
                "input_series": input_series(case["series"]),
                "alert_rule_test": [check],
            }
        )
    run_promtool(tmp_path, tests)


def test_no_alert_fires_while_all_is_well(tmp_path: Path) -> None:
    checks = [{"eval_time": "95m", "alertname": name, "exp_alerts": []} for name in rules("alert")]
    healthy = {
        "interval": SERIES["interval"],
        "input_series": input_series(SERIES["healthy"]),
        "alert_rule_test": checks,
    }
    run_promtool(tmp_path, [healthy])


def test_every_panel_shows_something_of_a_recorded_run(tmp_path: Path, recorded: Recorded) -> None:
    series = {
        name: " ".join(f"{value:.9f}" for value in values)
        for name, values in recorded.items()
        if "_created" not in name
    }
    checks = []
    for expression in expressions_of_the_dashboard():
        plain = expression.replace("$__rate_interval", "5m").replace("[1h]", "[10m]")
        plain = plain.replace("$store", ".*").replace("$operation", ".*")
        shows = f"count({plain}) > bool 0"
        samples = [{"labels": "{}", "value": 1}]
        checks.append({"expr": shows, "eval_time": f"{SCRAPES - 1}m", "exp_samples": samples})
    assert len(checks) > 15
    recording = {
        "interval": "1m",
        "input_series": input_series(series),
        "promql_expr_test": checks,
    }
    run_promtool(tmp_path, [recording])
