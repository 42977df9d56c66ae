"""Metadata of modules: a compile is repeated only if what Puppet uses of them differs."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from localpuppet.base.formats.values import Json
from localpuppet.node.preview.compile_request import LAYOUT
from localpuppet.node.preview.read_set import ReadSet
from localpuppet.node.preview.release_index import (
    METADATA,
    MODULE,
    ReleaseIndex,
    TreeStates,
    index_roots,
    key_digests,
    missing_digests,
)
from tests.node.preview.rig import compile_all, make_engine, request, write, write_release

BASE: dict[str, Json] = {
    "name": "x-m",
    "version": "1.0.0",
    "author": "x",
    "license": "x",
    "source": "x",
    "dependencies": [{"name": "x/b", "version_requirement": ">= 1.0.0"}],
}
# What Puppet uses is equal in each list.
ALIKE: Mapping[str, list[str | None]] = {
    "one dependency": [
        json.dumps(BASE),
        json.dumps({**BASE, "version": "2.0.0", "source": "y", "name": "y-m", "tags": [1]}),
        json.dumps({**BASE, "dependencies": [{"name": "x/b", "version_requirement": "9.x"}]}),
        json.dumps({**BASE, "dependencies": [{"name": "x/b"}]}, indent=2),
        json.dumps({**BASE, "version": False}),
    ],
    "no dependency": [None, "{}", json.dumps({**BASE, "dependencies": []})],
    "another dependency": [json.dumps({**BASE, "dependencies": [{"name": "x/c"}]})],
    "dependencies": [json.dumps({**BASE, "dependencies": [{"name": "x/b"}, {"name": "x/a"}]})],
    "in another order": [json.dumps({**BASE, "dependencies": [{"name": "x/a"}, {"name": "x/b"}]})],
    "provider": [json.dumps({**BASE, "data_provider": "hiera"})],
    "no provider": [json.dumps({**BASE, "data_provider": "none", "dependencies": []})],
}
_DEPENDENCIES: list[Json] = [None, {}, "x/b", ["x/b"], [{}], [{"name": 1}]]
# Puppet rejects the module, or the form is not what it expects.
WHOLE = [
    *("", "[]", "text", json.dumps(BASE)[:-1], f"/* */ {json.dumps(BASE)}"),
    json.dumps({**BASE, "version": None}),
    *(json.dumps({**BASE, "dependencies": value}) for value in _DEPENDENCIES),
    json.dumps({**BASE, "name": 1}),
    json.dumps({**BASE, MODULE: ""}),
    json.dumps(BASE).replace('"version"', '"version": "2", "version"'),
    json.dumps(BASE)[:-1] + f', "deep": {"[" * 100}{"]" * 100}}}',
]
# Prints the order in which code of `m` sees modules, and its data provider.
RUBY = """
require 'puppet'; require 'json'
Puppet.initialize_settings(%w[--confdir /nonexistent --vardir /nonexistent])
Puppet::Util::Log.close_all
views = Dir.children(ARGV[0]).to_h do |name|
  environment = Puppet::Node::Environment.create(name.to_sym, [File.join(ARGV[0], name)])
  mod = environment.module('m')
  loaders = Puppet::Pops::Loaders.new(environment, false, false)
  [name, mod && [loaders.private_loader_for_module('m').to_s, mod.metadata['data_provider']]]
rescue StandardError => e
  [name, e.class.to_s]
end
puts JSON.generate(views)
"""


def used(text: str | None) -> str | None:
    """Return the digest of what Puppet uses; `None` if the file counts as a whole."""
    file = f"modules/m/{METADATA}"
    digests = missing_digests(file) if text is None else key_digests(file, text.encode())
    return None if digests is None else digests[MODULE]


def test_what_puppet_uses_is_equal_or_not() -> None:
    digests = {title: {used(text) for text in texts} for title, texts in ALIKE.items()}
    assert [len(alike) for alike in digests.values()] == [1] * len(ALIKE)
    assert None not in set.union(*digests.values())
    assert len(set.union(*digests.values())) == len(ALIKE)


@pytest.mark.parametrize("text", WHOLE)
def test_other_metadata_count_as_a_whole(text: str) -> None:
    assert used(text) is None


def test_only_the_file_of_a_module_has_that_key() -> None:
    assert MODULE not in (key_digests("data/common.json", b"{}") or {})
    assert missing_digests("data/common.json") is None


@pytest.mark.puppet
def test_puppet_uses_the_same_of_metadata_with_one_digest(tmp_path: Path) -> None:
    texts = [*(text for alike in ALIKE.values() for text in alike), *WHOLE]
    for number, text in enumerate(texts):
        modules = write_release(tmp_path / f"e{number}", {})
        for name in ("a", "b", "c", "m"):
            (modules / name).mkdir()
        if text is not None:
            (modules / "m" / METADATA).write_text(text)
    (script := tmp_path.with_suffix(".rb")).write_text(RUBY)
    asked = subprocess.run(
        ["ruby", str(script), str(tmp_path)], capture_output=True, text=True, check=True
    )
    views = json.loads(asked.stdout)
    by_digest: dict[str, set[str]] = {}
    for number, text in enumerate(texts):
        digest = used(text)
        if digest is not None:
            by_digest.setdefault(digest, set()).add(json.dumps(views[f"e{number}"]))
    assert [len(seen) for seen in by_digest.values()] == [1] * len(ALIKE), by_digest


@pytest.mark.puppet
def test_a_compile_is_repeated_for_another_dependency_only(tmp_path: Path) -> None:
    file, plain = f"modules/m/{METADATA}", f"modules/n/{METADATA}"
    files = {
        "site.pp": "include m, n",
        "modules/m/manifests/init.pp": "class m { }",
        "modules/n/manifests/init.pp": "class n { }",
        file: json.dumps(BASE),
    }
    release = write(tmp_path / "r", files)
    compile_request = request("a")
    (result,) = compile_all(make_engine(tmp_path / "e"), release, [compile_request]).values()

    def index(directory: Path) -> ReleaseIndex:
        roots = index_roots(write(directory, {}), tmp_path / "no-site-manifest")
        made = ReleaseIndex.of(roots, TreeStates())
        made.states[LAYOUT] = ""  # is the same for all of them
        return made

    read_set = ReadSet.of(result.reads, compile_request, index(tmp_path / "r"))
    assert isinstance(read_set, ReadSet)
    changes = {
        "version": ({file: json.dumps({**BASE, "version": "2.0.0", "source": "y"})}, set()),
        "requirement": ({file: json.dumps({**BASE, "dependencies": [{"name": "x/b"}]})}, set()),
        "dependency": ({file: json.dumps({**BASE, "dependencies": [{"name": "x/c"}]})}, {file}),
        "whole": ({file: "{"}, {file}),
        "first": ({plain: json.dumps({**BASE, "dependencies": []})}, set()),
        "depends": ({plain: json.dumps(BASE)}, {plain}),
        "broken": ({plain: "{"}, {plain}),
    }
    for name, (change, expected) in changes.items():
        changed = index(write_release(tmp_path / name, {**files, **change}))
        assert {part.problem(changed) for part in read_set.parts} - {""} == expected, name
    (tmp_path / "r" / file).unlink()
    gone = index(tmp_path / "r")
    assert {part.problem(gone) for part in read_set.parts} - {""} == {file}
