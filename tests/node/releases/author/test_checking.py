"""release check: the checks of a pipeline before a tag."""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.rigs.forge import Forge, klass, manifest, release
from tests.rigs.node import Node


def lock(node: Node, forge: Forge, files: Mapping[str, str]) -> None:
    web = forge.repo("web")
    web.write(files)
    node.run("release", "lock", str(web.path), code=0)


def test_a_good_release_passes(site: Node, forge: Forge) -> None:
    web = forge.repo("web")
    before = web.git("status", "--porcelain", "--ignored")
    done = site.run("release", "check", str(web.path), code=0)
    assert "agrees with the manifest: 2 pinned" in done.out
    assert "reads 3 modules, 3 classes" in done.out
    value = site.run("release", "check", str(web.path), "--json").json
    assert value["classes"] == ["ntp", "platform", "web"]
    assert value["modules"] == {"ntp": "v1"}
    assert value["dependencies"] == ["web → ntp", "web → dist/tags/r7"]
    assert web.git("status", "--porcelain", "--ignored") == before
    assert not list(site.state.glob(".check-*"))


@pytest.fixture
def public(forge: Forge) -> Iterator[Path]:
    """A public directory with a root, and a release of an unprivileged user."""
    path = Path(tempfile.mkdtemp(dir="/tmp"))
    path.chmod(0o755)
    (path / "root/var").mkdir(parents=True)
    (path / "home").mkdir()
    shutil.copytree(forge.repo("ntp").path, path / "ntp")
    for made in (path / "home", *(path / "ntp").rglob("*"), path / "ntp"):
        shutil.chown(made, "daemon")
    yield path
    shutil.rmtree(path)


def test_an_unprivileged_user_has_a_cache_in_their_home(site: Node, public: Path) -> None:
    user = Node(public / "root", inside=["setpriv", "--reuid=daemon", "--clear-groups"])
    web, home = str(public / "ntp"), str(public / "home")
    (public / "ntp/manifest.yaml").write_text("moduledir: modules\n")
    for verb in ("lock", "check"):
        user.run("release", verb, web, HOME=home, code=0)
    assert (public / "home/.cache/localpuppet/stage.lock").exists()
    assert not list((public / "root/var").iterdir())
    cache = str(public / "home/elsewhere")
    user.run("release", "check", web, HOME=home, XDG_CACHE_HOME=cache, code=0)
    assert (public / "home/elsewhere/localpuppet/stage.lock").exists()
    refused = user.run("stage", "web/tags/r1", HOME=home)
    assert "run as root" in refused.err


def test_a_release_needs_a_manifest_and_a_matching_lock(site: Node, forge: Forge) -> None:
    web = forge.repo("web")
    (web.path / "manifest.lock").rename(web.path / "aside")
    refused = site.run("release", "check", str(web.path), code=2)
    assert f"there is no manifest.lock (run 'localpuppet release lock {web.path}'" in refused.err
    (web.path / "aside").rename(web.path / "manifest.lock")
    web.write({"manifest.yaml": manifest(forge, ntp="v2")})
    refused = site.run("release", "check", str(web.path), code=2)
    assert "modules.ntp: manifest and lock disagree" in refused.err
    (web.path / "manifest.yaml").unlink()
    site.run("release", "check", str(web.path), code=2)


def test_a_moved_tag_is_an_alarm_and_a_lost_host_unavailable(site: Node, forge: Forge) -> None:
    web, ntp = forge.repo("web"), forge.repo("ntp")
    ntp.commit({"manifests/init.pp": klass("ntp", "evil")})
    ntp.git("tag", "-f", "-a", "-m", "v1", "v1")
    alarm = site.run("release", "check", str(web.path), code=3)
    assert "manifest.lock: modules.ntp: the tag v1 has moved" in alarm.err
    shutil.rmtree(ntp.path)
    site.run("release", "check", str(web.path), code=69)


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ("base/trunk", "web → dist/tags/r8 → deep/tags/d1 → base/trunk is not a tag"),
        ("other/tags/o1", "cannot check other/tags/o1: 'other' is not a source"),
    ],
)
def test_dependencies_of_dependencies_must_be_tags(
    site: Node, forge: Forge, names: str, problem: str
) -> None:
    forge.repo("deep").commit({"manifest.yaml": f"modulepath: [{names}]\n"}, "d1")
    forge.repo("dist").commit({"manifest.yaml": "modulepath: [deep/tags/d1]\n"}, "r8")
    site.settings(
        allow_file_urls=True,
        sources={name: {"git": forge.repo(name).url} for name in ("web", "dist", "deep")},
    )
    lock(site, forge, {"manifest.yaml": manifest(forge, dist="r8")})
    refused = site.run("release", "check", str(forge.repo("web").path), code=2)
    assert problem in refused.err
    assert "web → dist/tags/r8 → deep/tags/d1: manifest.yaml" in refused.err


def test_circular_dependencies_are_accepted(site: Node, forge: Forge) -> None:
    ntp = forge.repo("ntp")
    back = f"modules: {{ntp: {{git: '{ntp.url}', tag: v1}}}}\n"
    forge.repo("dist").commit({"manifest.yaml": back + "modulepath: [web/tags/r1]\n"}, "r8")
    lock(site, forge, {"manifest.yaml": manifest(forge, dist="r8")})
    done = site.run("release", "check", str(forge.repo("web").path), "--json", code=0)
    assert done.json["dependencies"] == [
        "web → ntp",
        "web → dist/tags/r8",
        "web → dist/tags/r8 → web/tags/r1",
        "web → dist/tags/r8 → web/tags/r1 → dist/tags/r7",
    ]


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"web/manifests/x.pp": "class web::x {"}, "web/manifests/x.pp: Puppet cannot parse it"),
        ({"enc.yaml": "classes: {web: {nope: 1}}\n"}, "enc.yaml: classes.web.nope: the class web"),
        (
            {"enc.yaml": "layers: {eu: {classes: [wep]}}\n"},
            "enc.yaml: layers.eu: classes.wep: the release has no class 'wep' (did you mean 'web'?",
        ),
        ({"ntp/manifests/init.pp": "class ntp {}"}, "the release has a directory 'ntp'"),
    ],
)
def test_code_and_data_that_puppet_would_refuse_are_refused(
    site: Node, forge: Forge, files: dict[str, str], problem: str
) -> None:
    web = forge.repo("web")
    web.write(files)
    refused = site.run("release", "check", str(web.path), code=2)
    assert problem in refused.err
    assert len(refused.err.splitlines()) == 1


def test_enc_yaml_may_leave_parameters_to_inputs(site: Node, forge: Forge) -> None:
    web = forge.repo("web")
    web.write(
        {
            "web/manifests/init.pp": "class web(Integer $port, String $name_of) { }\n",
            "enc.yaml": "classes: {web: {port: '%{port}', name_of: null}}\n",
        }
    )
    site.run("release", "check", str(web.path), code=0)


def test_a_broken_dependency_is_named(site: Node, forge: Forge) -> None:
    forge.repo("dist").commit({"platform/manifests/bad.pp": "class x {\n)"}, "r8")
    release(site, forge, "r2", dist="r8")
    refused = site.run("release", "check", str(forge.repo("web").path), code=2)
    assert "dist/tags/r8/platform/manifests/bad.pp:2: Puppet cannot parse it" in refused.err
