"""deploy/monitoring: every rule and every panel asks for what /metrics has."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.conf import settings
from django.test import Client

from console.models import InvariantCheck
from scheduler import loop_progress
from tests.factories import NOON, make_active_lease, make_host, price

FOLDER = Path(__file__).parents[2] / "deploy" / "monitoring"
METRIC = re.compile(r"\bgpuyard_[a-z0-9_]+")
SELECTOR = re.compile(r"(gpuyard_[a-z0-9_]+)\{([^}]*)\}")
LABEL = re.compile(r'([a-z_]+)\s*(?:=~|!~|!=|=)\s*"')
GROUPED = re.compile(r"by \(([a-z_, ]+)\)")


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load((FOLDER / "alerts.yml").read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((FOLDER / "grafana.json").read_text())["panels"]
    return found


def expressions() -> list[str]:
    return [rule["expr"] for rule in rules()] + [target["expr"] for each in panels() for target in each["targets"]]


@pytest.fixture
def exposed(client: Client, db: None) -> str:
    """/metrics of an installation in which every family has something to say."""
    make_host(gpus=2)
    price()
    make_active_lease()
    for name in settings.LOOPS:
        loop_progress.note(name=name, started_at=NOON, ended_at=NOON, error=None)
    InvariantCheck.objects.create(name="x", findings=0, checked_at=NOON)
    client.get("/api/v1/leases")
    return client.get("/metrics").content.decode()


def labels_of(exposed: str) -> dict[str, set[str]]:
    """Return the labels of each sample's name; samples without any have an empty set."""
    found: dict[str, set[str]] = {}
    for line in exposed.splitlines():
        sample = re.match(r"(gpuyard_[a-z0-9_]+)(?:\{(.*)\})? ", line)
        if sample:
            found.setdefault(sample[1], set()).update(re.findall(r'([a-z_]+)="', sample[2] or ""))
    return found


def described(exposed: str) -> set[str]:
    """Return the families that are there, also those without a sample now."""
    return set(re.findall(r"^# TYPE (gpuyard_[a-z0-9_]+) ", exposed, re.MULTILINE))


def test_every_metric_of_a_rule_or_a_panel_is_exposed(exposed: str) -> None:
    known = described(exposed) | labels_of(exposed).keys()
    asked = {name for expression in expressions() for name in METRIC.findall(expression)}

    assert len(asked) > 12
    assert asked - known == set()


def test_every_label_that_is_selected_is_one_of_its_metric(exposed: str) -> None:
    labels = labels_of(exposed)
    for expression in expressions():
        for name, selected in SELECTOR.findall(expression):
            assert set(LABEL.findall(selected)) <= labels[name] | {"le"}, expression


def test_every_label_that_is_grouped_by_is_one_of_the_metrics_in_the_expression(exposed: str) -> None:
    labels = labels_of(exposed) | {"gpuyard_alarms_open": {"kind"}}  # none is open
    for expression in expressions():
        names = METRIC.findall(expression)
        for group in GROUPED.findall(expression):
            there = set().union(*(labels.get(name, set()) for name in names)) | {"le"}
            assert {label.strip() for label in group.split(",")} <= there, expression


def test_every_family_of_ours_is_watched_or_drawn(exposed: str) -> None:
    asked = {name for expression in expressions() for name in METRIC.findall(expression)}
    endings = ("_bucket", "_total", "_count", "_sum", "_created")
    roots = {name.removesuffix(ending) for name in asked for ending in ("", *endings)}
    families = {name.removesuffix("_total").removesuffix("_created") for name in described(exposed)}

    assert families - roots == set()


@pytest.mark.parametrize("rule", rules(), ids=[rule["alert"] for rule in rules()])
def test_a_rule_says_whom_to_wake_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"page", "ticket"}
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["description"].endswith(".")
    assert re.fullmatch(r"[0-9]+[smh]", rule["for"])
    for label in re.findall(r"\$labels\.([a-z_]+)", str(rule["annotations"])):
        assert re.search(rf"by \([^)]*\b{label}\b|\bup\{{", rule["expr"]), rule["alert"]


def test_panels_stand_beside_each_other_and_each_has_a_number_of_its_own() -> None:
    numbers = [each["id"] for each in panels()]
    places = [(each["gridPos"]["x"], each["gridPos"]["y"]) for each in panels()]

    assert len(set(numbers)) == len(numbers)
    assert len(set(places)) == len(places)
