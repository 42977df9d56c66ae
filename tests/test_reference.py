"""The generated pages of the reference, and the annotations of the settings schema behind them."""

import copy
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from localpuppet.base.formats.documents import Documents
from localpuppet.base.formats.schemas import load
from localpuppet.fleet.fleet_settings import fleet_settings_of, peer_settings
from localpuppet.main import cli
from localpuppet.node.settings import SettingsFile, settings_of
from localpuppet.web.web_settings import web_settings

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import command_pages  # noqa: E402 # it lies beside the other scripts
import reference  # noqa: E402 # it lies beside the other scripts
from formats import collect_keys  # noqa: E402

SCHEMA = load("settings")
SETTINGS = dict(reference.walk_settings(SCHEMA))
# Keys whose presence means more than their value: they enable the site's files or bus.
PRESENCE = {
    "bus",
    "enc_script",
    "site_manifest",
    "instance_data.cloud_init.cloud_dir",
    "instance_data.cloud_init.run_dir",
}
DEFAULTS = {
    key: part["default"]
    for key, part in SETTINGS.items()
    if "default" in part and key not in PRESENCE and ".NAME" not in key
}


def test_a_setting_has_a_description_and_its_users() -> None:
    for key, part in SETTINGS.items():
        assert re.fullmatch(r"[A-Z\[`c].*\.", part["description"], re.DOTALL), key
        assert part["x-used-by"], key


def test_a_setting_without_a_group_is_reported() -> None:
    assert reference.find_ungrouped(SCHEMA) == []
    properties = {**SCHEMA["properties"], "unlisted": {"type": "string"}}
    assert reference.find_ungrouped({**SCHEMA, "properties": properties}) == ["unlisted"]


def test_each_setting_is_defined_once() -> None:
    page = (ROOT / "docs/reference/settings.md").read_text("utf-8")
    defined = re.findall(r"^### `(.+)`$", page, re.MULTILINE)
    assert sorted(defined) == sorted(key for key in SETTINGS if not key.endswith(".NAME"))


def read_all(root: Path, raw: dict[str, Any]) -> list[object]:
    file = SettingsFile(
        root=root,
        state=root / "var",
        path=root / "localpuppet.yaml",
        raw=raw,
        documents=Documents(None),
    )
    return [
        settings_of(root, raw),
        peer_settings(file),
        fleet_settings_of(file),
        web_settings(file),
    ]


def test_a_documented_default_is_what_the_code_uses(tmp_path: Path) -> None:
    base = {"bus": "nats", "buses": {"nats": {"servers": ["tls://bus.example.com:4222"]}}}
    without = read_all(tmp_path, copy.deepcopy(base))
    for key, default in DEFAULTS.items():
        raw: dict[str, Any] = copy.deepcopy(base)
        *outer, last = key.split(".")
        place = raw
        for name in outer:
            place = place.setdefault(name, {})
        place[last] = default
        assert read_all(tmp_path, raw) == without, key


def test_each_metric_is_documented_once() -> None:
    page = (ROOT / "docs/reference/metrics.md").read_text("utf-8")
    documented = re.findall(r"^\| `(localpuppet_\w+)", page, re.MULTILINE)
    written = {
        *collect_keys("metrics node/runs/metrics_file.py:_HELP"),
        *collect_keys("metrics rollout/rollout_report.py"),
        *collect_keys("metrics web/notify/notifier.py:_HELP"),
        *collect_keys("metrics web/hooks/hook_worker.py:_HELP"),
    }
    assert sorted(documented) == sorted(name for name in written if not name.endswith("_"))


def test_each_visible_command_is_described_once() -> None:
    pages = command_pages.render_command_pages(cli, "notice")
    headings = re.findall(r"^##+ `(.+)`$", "\n".join(pages.values()), re.MULTILINE)
    context = click.Context(cli, info_name="localpuppet")
    assert sorted(headings) == sorted(visible_below(cli, context))


def visible_below(group: click.Group, context: click.Context) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if not command.hidden:
            inner = click.Context(command, info_name=name, parent=context)
            yield inner.command_path
            if isinstance(command, click.Group):
                yield from visible_below(command, inner)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("see 'localpuppet why'", "see `localpuppet why`"),
        ("a node's name and the nodes' keys", "a node's name and the nodes' keys"),
        ("an URL: https://host/x, or none", "an URL: `https://host/x`, or none"),
        ("'https://host' and `a*b`", "`https://host` and `a*b`"),
        ("lines *, <NAME> and a_b", "lines \\*, \\<NAME> and a_b"),
    ],
)
def test_help_becomes_markdown(text: str, expected: str) -> None:
    assert command_pages.markdown(text) == expected
