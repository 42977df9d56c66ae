"""release diff: pins, files and compiled resources."""

import difflib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localpuppet.node.releases import comparison
from localpuppet.node.releases.comparison import unified
from tests.rigs.forge import Forge, klass, make, release
from tests.rigs.node import Node


def test_different_pins_files_and_resources_are_listed(site: Node, forge: Forge) -> None:
    forge.repo("ntp").commit({"manifests/init.pp": klass("ntp", "ntp v2")}, "v2")
    forge.repo("web").write({"web/files/new": "x"})
    release(site, forge, "r2", ntp="v2")
    arguments = ["release", "diff", "web/tags/r1", "web/tags/r2", "--catalog"]
    arguments.append(str(site.root / "input.yaml"))
    found = site.run(*arguments, "--json", code=0)
    assert list(found.json["dependencies"]["changed"]) == ["module ntp"]
    assert "v1 (" in found.json["dependencies"]["changed"]["module ntp"]
    assert found.json["files"]["added"] == ["web/files/new"]
    assert list(found.json["files"]["changed"]) == [
        "manifest.lock",
        "manifest.yaml",
        "ntp/manifests/init.pp",
        "web/manifests/init.pp",
    ]
    assert found.json["files"]["changed"]["manifest.lock"].startswith("file ")
    assert found.json["resources"]["added"] == ["Notify[ntp v2]", "Notify[web r2]"]
    assert found.json["resources"]["removed"] == ["Notify[ntp v1]", "Notify[web r1]"]
    assert not list(site.state.glob("diff-*")), "no temporary file remains"
    assert site.runs() == [], "no catalog was applied"


def test_a_value_with_line_breaks_is_shown_on_one_line(site: Node, forge: Forge) -> None:
    for tag in ("r2", "r3"):
        note = f"class web {{ notify {{ ['motd', '{tag}']: message => \"{tag}\\nthen\\n\" }} }}\n"
        forge.repo("web").write({"web/manifests/init.pp": note})
        forge.repo("web").commit({}, tag)
    arguments = ["release", "diff", "web/tags/r2", "web/tags/r3", "--catalog"]
    shown = site.run(*arguments, str(site.root / "input.yaml"), code=0)
    line = r"  ~ Notify[motd]  message: r2\nthen\n → r3\nthen\n"
    assert {line, "  + Notify[r3]", "  - Notify[r2]"} <= set(shown.out.splitlines())


CONTROL = {
    "manifest.yaml": "moduledir: modules\nmodulepath: [dist/tags/r7]\n"
    "modules:\n  ntp: {git: 'NTP', tag: v1}\n",
    "environment.conf": "modulepath = site-modules:modules\n",
    "site-modules/web/manifests/init.pp": klass("web", "web"),
}
DATA = {
    "data/common.yaml": "a: 1\nb: 2",
    "data/same.yaml": "a: 1\n",
    "hiera.yaml": "version: 5\n",
    "manifests/site.pp": "node default { }\n",
    "logo.png": "PNG\0 1",
    "large.txt": "a\n" * 200_000,
}


def test_every_file_of_a_release_is_compared(site: Node, forge: Forge) -> None:
    """Also data, hiera.yaml and the site manifest, which are not on the modulepath."""
    web = forge.repo("web")
    control = {name: text.replace("NTP", forge.repo("ntp").url) for name, text in CONTROL.items()}
    web.write({**control, **DATA})
    make(site, "lock", str(web.path), code=0)
    web.commit({}, "r2")
    web.git("rm", "-q", "hiera.yaml")
    changed = {name: text.replace("1", "3") for name, text in DATA.items() if "same" not in name}
    del changed["hiera.yaml"]
    changed["manifests/site.pp"] = "node default { include web }\n"
    changed["large.txt"] = "b\n" * 200_000
    web.commit({**changed, "data/new.yaml": "c: \x1b[31m3\n"}, "r3")
    found = site.run("release", "diff", "web/tags/r2", "web/tags/r3", "--text", "--json", code=0)
    assert found.json["files"]["added"] == ["data/new.yaml"]
    assert found.json["files"]["removed"] == ["hiera.yaml"]
    names = ["data/common.yaml", "large.txt", "logo.png", "manifests/site.pp"]
    assert list(found.json["files"]["changed"]) == names
    texts = found.json["texts"]
    assert texts["logo.png"] == "not shown: a binary file"
    assert texts["large.txt"] == "not shown: more than 262144 bytes"
    assert texts["data/common.yaml"] == (
        "--- web/tags/r2/data/common.yaml\n+++ web/tags/r3/data/common.yaml\n@@ -1,2 +1,2 @@\n"
        "-a: 1\n+a: 3\n b: 2\n\\ No newline at end of file"
    )
    shown = site.run("release", "diff", "web/tags/r2", "web/tags/r3", "--text").out
    assert "\nlogo.png: not shown: a binary file\n" in shown
    assert "\n-version: 5\n" in shown
    assert "\n+c: \\x1b[31m3\n" in shown
    coloured = site.run("--color=always", "release", "diff", "web/tags/r2", "web/tags/r3", "--text")
    assert "\n\x1b[31m-version: 5\x1b[0m\n" in coloured.out
    assert "\n\x1b[32m+c: \\x1b[31m3\x1b[0m\n" in coloured.out
    moved = site.run("release", "diff", "web/tags/r1", "web/tags/r2", "--json").json["files"]
    assert "ntp/manifests/init.pp" in moved["removed"]
    assert "modules/ntp/manifests/init.pp" in moved["added"]
    assert "platform" not in json.dumps(moved), "the collection did not change"


def test_a_clone_has_no_difference_in_files_from_its_tag(site: Node, forge: Forge) -> None:
    trunk = site.root / "modules/web/trunk"
    forge.repo("web").git("clone", "-q", ".", str(trunk))
    shown = site.run("release", "diff", "web/tags/r1", "web/trunk")
    assert shown.out == "dependencies\n  the same\nfiles\n  the same\n", shown.err


def test_diffs_are_bounded_and_give_a_reason_for_omitted_text() -> None:
    labels = ("a", "b")
    assert unified(b"a\n" * 6_000, b"b\n", labels=labels) == "not shown: more than 5000 lines"
    assert unified(b"\xff", b"a", labels=labels) == "not shown: a binary file"
    assert unified(b"", b"", labels=labels) == "no difference in content"


LINES = st.lists(st.sampled_from(["a", "b", "c", "{", "}"]), max_size=20)


@given(LINES, LINES)
def test_a_diff_is_that_of_difflib(first: list[str], second: list[str]) -> None:
    texts = ["".join(f"{line}\n" for line in lines) for lines in (first, second)]
    shown = unified(*(text.encode() for text in texts), labels=("before", "after"))
    lines = difflib.unified_diff(first, second, "before", "after", lineterm="")
    assert shown == ("\n".join(lines) if first != second else "no difference in content")


def test_the_steps_of_a_diff_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines in reverse, and such that occur often, take minutes until all equal ones are found."""
    lines = [f"{number}" for number in range(100)]
    first, second = [*lines, *lines], [*lines, "new", *reversed(lines)]
    texts = ["".join(f"{line}\n" for line in lines).encode() for lines in (first, second)]
    for steps, equal in ((1000, True), (0, False)):
        monkeypatch.setattr(comparison, "MAX_STEPS", steps)
        shown = unified(*texts, labels=("a", "b")).splitlines()[3:]
        assert any(line[0] == " " for line in shown) == equal
    kept = [[line[1:] for line in shown if line[0] in sign] for sign in (" -", " +")]
    assert kept == [first, second]


def test_the_older_release_is_compiled_without_newer_classes(site: Node, forge: Forge) -> None:
    new = {
        "web/manifests/init.pp": 'class web ($port = 80) { notify { "port ${port}": } }\n',
        "extra/manifests/init.pp": klass("extra", "extra"),
    }
    release(site, forge, "r2")
    forge.repo("web").commit(new, "r3")
    site.write("new.yaml", "app: web/tags/r3\nclasses: {web: {port: 81}, extra: null}\n")
    arguments = ["release", "diff", "web/tags/r1", "web/tags/r3", "--catalog"]
    done = site.run(*arguments, str(site.root / "new.yaml"), "--json", code=0)
    assert done.json["resources"]["added"] == ["Class[Extra]", "Notify[extra]", "Notify[port 81]"]
    assert "web/tags/r1 has no parameter web::port, class extra: compiled without" in done.err
    site.write("new.yaml", "app: web/tags/r3\nclasses: [web, nowhere]\n")
    refused = site.run(*arguments, str(site.root / "new.yaml"), code=2)
    assert "nowhere" in refused.err
    assert "\\x" not in refused.err
