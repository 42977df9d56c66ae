"""The difference between two catalogs that Puppet compiled."""

import json
import subprocess
from pathlib import Path

import pytest

from localpuppet.node.preview.difference import CatalogDifference, difference
from localpuppet.node.puppet.catalog import CanonicalCatalog
from tests.rigs.node import PATIENCE

pytestmark = pytest.mark.puppet

BEFORE = """
class web($port = 80) {
  file { '/etc/web.conf': content => "Listen ${port}\\nName ${facts['networking']['fqdn']}\\n" }
  service { 'web': ensure => running, require => File['/etc/web.conf'] }
  exec { 'old': command => '/bin/true' }
  file { '/etc/key': content => Sensitive('one'), mode => '0600' }
}
class old { notify { 'old': } }
include web
include old
"""
AFTER = """
class web($port = 80) {
  file { '/etc/key': mode => '0600', content => Sensitive('one') }
  file { '/etc/web.conf':
    content => "Listen 8080\\nName ${facts['networking']['fqdn']}\\n",
    tag     => 'x',
  }
  ~> service { 'web': ensure => running }
  package { ['web', 'web-doc']: require => File['/etc/key'] }
}
include web
"""


def compiled(directory: Path, manifest: str) -> CanonicalCatalog:
    directory.mkdir()
    file = directory / "site.pp"
    file.write_text(manifest)
    done = subprocess.run(
        [
            *("puppet", "catalog", "compile", "web1", "--render-as", "json"),
            *("--manifest", str(file), "--confdir", str(directory), "--vardir", str(directory)),
            *("--log_level", "err"),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    return CanonicalCatalog.of(json.loads(done.stdout[done.stdout.index("{") :]))


def lines(changes: CatalogDifference) -> list[str]:
    return [
        *(f"- class {name}" for name in changes.classes_removed),
        *(f"+ class {name}" for name in changes.classes_added),
        *(
            " ".join([item.action, item.reference, *(change.name for change in item.parameters)])
            for item in changes.resources
        ),
        *(
            f"{item.action} {item.source} {item.relationship} {item.target}"
            for item in changes.relationships
        ),
    ]


def test_the_difference_of_two_compiled_catalogs(tmp_path: Path) -> None:
    before = compiled(tmp_path / "before", BEFORE)
    after = compiled(tmp_path / "after", AFTER)
    changes = difference(before, after)
    assert lines(changes) == [
        "- class old",
        "removed Exec[old] command",
        "changed File[/etc/web.conf] content",
        "removed Notify[old]",
        "added Package[web] require",
        "added Package[web-doc] require",
        "added File[/etc/web.conf] notifies Service[web]",
        "removed File[/etc/web.conf] before Service[web]",
    ]
    (content,) = next(
        item for item in changes.resources if item.title == "/etc/web.conf"
    ).parameters
    assert content.text is not None
    assert content.text.splitlines()[1:3] == ["-Listen 80", "+Listen 8080"]
    assert not difference(before, compiled(tmp_path / "again", BEFORE))
