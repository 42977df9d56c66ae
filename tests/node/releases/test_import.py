"""release import makes a lockable manifest from a Puppetfile and real repositories."""

import os
from pathlib import Path

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.node.releases.author import puppetfile_import
from tests.rigs.forge import Forge, klass, make
from tests.rigs.node import Node


@pytest.fixture
def shop(node: Node, forge: Forge) -> Node:
    """A node, and repositories: ntp with an annotated tag, apt with a commit after its tag."""
    node.settings(allow_file_urls=True)
    forge.repo("ntp").commit({"manifests/init.pp": klass("ntp", "v1")}, "v1.0.0")
    apt = forge.repo("apt")
    apt.commit({"manifests/init.pp": klass("apt", "v2")}, "v2")
    apt.commit({"manifests/init.pp": klass("apt", "later")})
    return node


def puppetfile(node: Node, *modules: str) -> Path:
    text = "moduledir 'ext'\n\n" + "\n".join(modules) + "\n"
    return node.write("control/Puppetfile", text)


def module(forge: Forge, name: str, *options: str) -> str:
    return ",\n  ".join([f"mod 'acme/{name}'", f":git => '{forge.repo(name).url}'", *options])


def test_a_puppetfile_becomes_a_manifest_that_can_be_locked(shop: Node, forge: Forge) -> None:
    file = puppetfile(
        shop, module(forge, "ntp", ":ref => 'v1.0.0'"), "# the newest\n" + module(forge, "apt")
    )
    printed = make(shop, "import", str(file), code=0)
    assert "names no ref: main is taken" in printed.err
    output = file.parent / "manifest.yaml"
    make(shop, "import", str(file), "-o", str(output), code=0)
    assert output.read_text() == printed.out
    assert "  # the newest\n  apt:\n" in printed.out
    locked = make(shop, "lock", str(file.parent), "--json", code=0)
    pins = locked.json["modules"]
    assert pins["ntp"]["tag"] == "v1.0.0"
    assert pins["apt"]["branch"] == "main"


def test_only_entries_that_are_left_are_reported(shop: Node, forge: Forge) -> None:
    file = puppetfile(
        shop,
        module(forge, "ntp", ":tag => 'v1.0.0'"),
        f"mod 'gone', git: 'file://{forge.path}/gone', ref: 'x'",
        "mod 'old', :svn => 'https://svn.example.net/old'",
        module(forge, "apt", ":tag => version"),
        module(forge, "ntp", ":tag => 'v1.0.0'"),
    )
    output = file.parent / "manifest.yaml"
    done = make(shop, "import", str(file), "-o", str(output), "--json", code=1)
    assert list(done.json["modules"]) == ["ntp"]
    left = [(item["module"], item["reason"]) for item in done.json["entries"] if item["reason"]]
    assert [name for name, _ in left] == ["gone", "old", "apt", "ntp"]
    assert "did not answer" in left[0][1]
    assert left[3][1] == "is a duplicate; line 3 is the first"
    shown = make(shop, "import", str(file), "-o", str(output))
    assert shown.out.splitlines()[-1] == f"wrote {output}: 1 of 5 modules taken, 4 left"


def test_a_module_of_type_git_is_labelled_git(shop: Node, forge: Forge) -> None:
    url = forge.repo("ntp").url
    file = puppetfile(shop, f"mod 'ntp', type: 'git', source: '{url}', version: 'v1.0.0'")
    done = make(shop, "import", str(file), "-o", str(file.parent / "manifest.yaml"))
    assert "git tag v1.0.0" in done.out
    assert "forge tag" not in done.out


def test_a_dry_run_asks_no_repository_and_writes_no_file(shop: Node, forge: Forge) -> None:
    file = puppetfile(
        shop,
        "mod 'puppetlabs/stdlib', :latest",
        f"mod 'gone', git: 'file://{forge.path}/gone', ref: '1.2.3'",
    )
    done = make(shop, "import", "--dry-run", str(file), code=0)
    assert done.out.splitlines()[-1] == "2 of 2 modules taken, 0 left"
    assert not (file.parent / "manifest.yaml").exists()


def test_a_second_import_changes_only_changed_entries(shop: Node, forge: Forge) -> None:
    file = puppetfile(shop, module(forge, "ntp", ":tag => 'v1.0.0'"))
    output = shop.write("control/manifest.yaml", 'modulepath:\n  - "dist/tags/r7"\nmodules: {}\n')
    make(shop, "import", str(file), "-o", str(output))
    before = output.read_text()
    make(shop, "import", str(file), "-o", str(output))
    assert output.read_text() == before
    assert before.startswith('modulepath:\n  - "dist/tags/r7"\n')
    puppetfile(shop, module(forge, "apt", ":tag => 'v2'"))
    done = make(shop, "import", str(file), "-o", str(output), "--json")
    assert done.json["changes"] == {"apt": "added", "ntp": "removed"}


def test_ruby_code_is_run_only_with_the_option_evaluate(shop: Node, forge: Forge) -> None:
    text = "base = 'https://git.example.net'\n%w[a b].each do |n|\n"
    file = shop.write(
        "control/Puppetfile", f'{text}  mod n, git: "#{{base}}/#{{n}}", tag: "v1"\nend\n'
    )
    left = make(shop, "import", "--dry-run", str(file), code=1)
    assert "is Ruby code ('--evaluate' runs it)" in left.out
    done = make(shop, "import", "--dry-run", "--evaluate", "--json", str(file), code=0)
    assert list(done.json["modules"]) == ["a", "b"]


@pytest.mark.parametrize(
    ("ruby", "what"),
    [
        ("File.write('/var/lib/x', 'x')", "Read-only file system|it was killed"),
        ("require 'socket'\nTCPSocket.new('127.0.0.1', 22)", "Operation not permitted"),
        ("raise 'no'", "RuntimeError: no"),
        ("x = 'a' * 1_000_000_000 * 4", "NoMemoryError|ArgumentError"),
        ("mod(", "SyntaxError"),
    ],
)
def test_evaluated_ruby_is_isolated(shop: Node, ruby: str, what: str) -> None:
    import re

    file = shop.write("control/Puppetfile", ruby + "\n")
    refused = make(shop, "import", "--dry-run", "--evaluate", str(file), code=2)
    assert re.search(what, refused.err), refused.err
    assert refused.err.count("\n") == 1


@pytest.mark.puppet
def test_evaluated_ruby_has_little_cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(puppetfile_import.LIMITS, "cpu", 1)  # of ten
    with pytest.raises(InvalidInputError, match="it was killed"):
        puppetfile_import.evaluate(b"loop {}\n", path=os.environ["PATH"])


def test_a_missing_or_binary_puppetfile_is_refused(shop: Node) -> None:
    assert "file not found (create it" in make(shop, "import", str(shop.root / "Puppetfile")).err
    (shop.root / "Puppetfile").write_bytes(b"\xff")
    assert "is not UTF-8" in make(shop, "import", str(shop.root / "Puppetfile")).err


def test_a_reason_is_readable_on_a_narrow_terminal(shop: Node, forge: Forge) -> None:
    file = puppetfile(
        shop,
        "forge 'https://forge.puppetlabs.com'",
        "mod 'a_module_with_a_very_long_name', :svn => 'https://svn.example.net/old'",
        module(forge, "apt"),
    )
    seen = make(shop, "import", "-o", str(file.parent / "manifest.yaml"), str(file), COLUMNS="60")
    assert "line 4: a_module_with_a_very_long_name: left: is a Subversion repository" in seen.out
    assert "line 5: apt: names no ref: main is taken" in seen.out
    assert "localpuppet.yaml" not in seen.out, "the node uses the public Forge"
    own = puppetfile(shop, "forge 'https://forge.example.com'")
    assert "is a setting here" in make(shop, "import", "--dry-run", str(own)).out
    offline = puppetfile(shop, module(forge, "apt"))
    unasked = make(shop, "import", "--dry-run", str(offline)).out
    assert "apt: names no ref: master is taken, and its repository was not asked" in unasked


@pytest.mark.parametrize(
    ("conf", "old", "moduledir", "taken"),
    [
        ("modulepath = site:one", "", "one", ["ntp"]),
        ("modulepath = site:two", "", "two", ["apt"]),
        ("modulepath = one:two", "", "one", ["apt", "ntp"]),
        ("modulepath = site", "", "one", []),
        ("", "moduledir: two\n", "two", ["apt"]),
        ("modulepath = modules:one", "moduledir: modules\n", "modules", ["ntp"]),
    ],
)
def test_modules_of_several_moduledirs_are_imported_or_left_by_name(
    shop: Node, forge: Forge, conf: str, old: str, moduledir: str, taken: list[str]
) -> None:
    shop.write("control/environment.conf", f"{conf}\n")
    manifest = shop.write("control/manifest.yaml", old or "{}\n")
    one, two = (module(forge, name, ":branch => 'main'") for name in ("ntp", "apt"))
    file = shop.write("control/Puppetfile", f"moduledir 'one'\n{one}\nmoduledir 'two'\n{two}\n")
    done = make(shop, "import", str(file), "-o", str(manifest), "--json")
    assert done.code == (0 if len(taken) == 2 else 1), done.err
    assert done.json["moduledir"] == moduledir
    assert sorted(done.json["modules"]) == taken
    for entry in done.json["entries"]:
        if entry["module"] not in taken:
            place = "one" if entry["module"] == "ntp" else "two"
            assert f"goes to {place} by install_path or moduledir" in entry["reason"]
