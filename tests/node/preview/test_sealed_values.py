"""A preview opens no sealed value: it sees which were set, and which were only sealed again."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.node.preview.rig import compile_all, make_engine, request, write

HIERA = """version: 5
hierarchy:
  - {name: sealed, lookup_key: localpuppet::sealed, datadir: sealed/values, paths: [common]}
"""
MANIFEST = """
notify { 'secret': message => lookup('s') }
notify { 'plain': message => lookup('p') }
notify { 'data': message => Sensitive(lookup('d').unwrap['user']) }
file { '/key': content => sealed_file('key') }
"""


def value(kind: str = "string", *, number: int = 1, age: str = "YWdl", group: str = "all") -> str:
    """Return the file of a value, with other bytes than age's."""
    return f'schema: 1\ngroup: "{group}"\nserial: 1\nnumber: {number}\ntype: {kind}\nage: {age}\n'


def sealed(**changed: str) -> dict[str, str]:
    values = {"s": value(), "p": value("plain"), "d": value("data"), **changed}
    files = {f"sealed/values/common/{key}.yaml": text for key, text in values.items()}
    return {"sealed/values/files/key.yaml": value("file"), **files}


@pytest.mark.puppet
def test_a_catalog_differs_for_a_set_value_and_not_for_a_resealed_one(tmp_path: Path) -> None:
    releases = {
        "before": sealed(),
        "resealed": sealed(s=value(age="YWdlMg=="), p=value("plain", age="YWdlMw==")),
        "set": sealed(s=value(number=2)),
    }
    catalogs = {}
    for name, files in releases.items():
        release = write(tmp_path / name, {"site.pp": MANIFEST, "hiera.yaml": HIERA, **files})
        engine = replace(make_engine(tmp_path / "e"), mark_key="00" * 32)
        result = compile_all(engine, release, [request()])
        catalog = result["web1.example.com"].catalog
        assert catalog is not None, result["web1.example.com"].failure
        catalogs[name] = {item.reference: item.parameters for item in catalog.resources}
    plain = catalogs["before"]["Notify", "plain"]
    assert plain == {"message": "[sealed common/p, number 1]"}
    assert catalogs["before"] == catalogs["resealed"]
    differ = {key for key, item in catalogs["set"].items() if item != catalogs["before"][key]}
    assert differ == {("Notify", "secret")}
