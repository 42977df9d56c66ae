"""The lock of an untrusted revision decides neither who fetches, nor what the store shows."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.node.cli.preview.control import ControlRepository
from tests.rigs.forge import Forge
from tests.rigs.module_forge import ModuleForge
from tests.rigs.node import Done, Node
from tests.rigs.public_server import ADDRESS, ADDRESS6, HOST, INNER, PublicServer, public_server

pytestmark = pytest.mark.puppet
CLASS = {"manifests/init.pp": "class extra { }\n"}


@pytest.fixture
def control(tmp_path: Path) -> ControlRepository:
    control = ControlRepository(tmp_path)
    control.git("checkout", "-q", "main")
    for capture in control.nodes.glob("web*"):
        capture.unlink()
    return control


@pytest.fixture
def forge(tmp_path: Path) -> Forge:
    return Forge(tmp_path / "forge")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PublicServer]:
    directory = tmp_path / "server"
    directory.mkdir()
    with public_server(directory) as server:
        yield server


def commit(control: ControlRepository, branch: str, pins: dict[str, dict[str, str]]) -> None:
    """Commit a manifest and its lock on a branch of main."""
    modules = {name: {"git": pin["url"], "tag": pin["tag"]} for name, pin in sorted(pins.items())}
    manifest = {"moduledir": "modules", "modules": modules}
    lock = {"version": 1, "modules": pins, "sources": {}}
    control.git("checkout", "-q", "-B", branch, "main")
    files = {"manifest.yaml": json.dumps(manifest), "manifest.lock": json.dumps(lock)}
    control.commit(files, branch)


def preview(
    node: Node,
    control: ControlRepository,
    revisions: str,
    *more: str,
    code: int | None = None,
    **env: str,
) -> Done:
    places = ["--dir", str(control.path), "--captures", str(control.nodes)]
    return node.run("preview", revisions, *places, *more, code=code, **env)


def locked(
    node: Node, control: ControlRepository, tag: str = "v1", **urls: str
) -> dict[str, dict[str, str]]:
    """Return the pins of a tag of repositories that this job may read."""
    modules = {name: {"git": url, "tag": tag} for name, url in urls.items()}
    control.write({"manifest.yaml": json.dumps({"modules": modules})})
    node.run("release", "lock", str(control.path), "--json", code=0)
    lock = yaml.safe_load((control.path / "manifest.lock").read_text())
    control.git("reset", "-q", "--hard")
    control.git("clean", "-qfd")
    pins: dict[str, dict[str, str]] = lock["modules"]
    return pins


def test_a_private_module_is_closed(node: Node, control: ControlRepository, forge: Forge) -> None:
    node.settings(allow_file_urls=True)
    known, private = forge.repo("known"), forge.repo("private")
    known.commit(CLASS, "v1")
    private.commit({**CLASS, "secret": "PRIVATE"}, "v1")
    pins = locked(node, control, known=known.url, private=private.url)
    commit(control, "before", pins)
    assert preview(node, control, "before..before").code == 0, "both are in mirror and store now"
    commit(control, "base", {"known": pins["known"]})
    known.commit({**CLASS, "new": "x"}, "v2")
    newer = locked(node, control, "v2", known=known.url)["known"]
    stolen = {**newer, "tree_sha256": pins["private"]["tree_sha256"]}
    unknown = "manifest.lock: modules.private: only this revision names this code"
    for name, changed, code, text in (
        ("private", {"private": pins["private"]}, 2, unknown),
        ("slash", {"private": {**pins["private"], "url": f"{private.url}/"}}, 2, unknown),
        ("stolen", {"known": stolen}, 3, "has the digest"),
        ("renamed", {"private": pins["known"]}, 0, ""),
        ("newer", {"known": newer}, 0, ""),
    ):
        commit(control, name, {"known": pins["known"], **changed})
        done = preview(node, control, f"base..{name}")
        assert done.code == code, (name, done.err, done.out)
        assert text in done.err
        assert ("(name its repository in 'sources' of localpuppet.yaml, or" in done.err) == (
            code == 2
        )
    preview(node, control, "base..private", "--trusted", code=0)
    node.settings(
        allow_file_urls=True, sources={"private": {"git": private.url}, "known": {"git": known.url}}
    )
    assert preview(node, control, "base..private").code == 0, "the settings name it"


def test_the_cure_for_a_module_of_a_directory_of_archives_names_no_host(
    node: Node, control: ControlRepository, tmp_path: Path
) -> None:
    archives = ModuleForge()
    archives.publish("acme/ntp", "1.0.0")
    node.settings(forge={"url": archives.write(tmp_path / "archives")})
    modules = {"ntp": {"forge": "acme/ntp", "version": "1.0.0"}}
    control.write({"manifest.yaml": json.dumps({"moduledir": "modules", "modules": modules})})
    node.run("release", "lock", str(control.path), code=0)
    control.commit({}, "ntp")
    done = preview(node, control, "HEAD~1..HEAD", code=2)
    assert "HEAD: manifest.lock: modules.ntp: only this revision names this code" in done.err
    assert "(pass '--trusted' for code" in done.err
    preview(node, control, "HEAD~1..HEAD", "--trusted", code=0)


def test_a_new_public_module_is_fetched_as_everybody_can(
    node: Node, control: ControlRepository, server: PublicServer, forge: Forge
) -> None:
    node.settings(preview={"hosts": [HOST, INNER]}, allow_file_urls=True)
    extra = Forge(server.directory).repo("extra.git")
    extra.commit(CLASS, "v1")
    private = forge.repo("private")
    private.commit({**CLASS, "secret": "PRIVATE"}, "v1")
    pins = locked(node, control, extra=extra.url, private=private.url)
    pin = pins["extra"]
    commit(control, "before", pins)
    assert preview(node, control, "before..before").code == 0, "all is in mirror and store now"
    node.inside = server.inside
    url = f"https://{HOST}"
    stolen = {"tree_sha256": pins["private"]["tree_sha256"]}
    refs = "extra.git/info/refs?service=git-upload-pack"
    for name, changed, code, asked in (
        ("new", {"url": f"{url}/extra.git"}, 0, f"/{refs}"),
        ("again", {"url": f"{url}/extra.git"}, 0, ""),
        ("port", {"url": f"https://{HOST.upper()}:443/extra.git"}, 0, f"/{refs}"),
        ("moved", {"url": f"{url}/moved/extra.git"}, 0, f"/moved/{refs}"),
        ("stolen", {"url": f"{url}/extra.git", **stolen}, 3, ""),
        ("closed", {"url": f"{url}/private/extra.git"}, 69, f"/private/{refs}"),
        ("redirected", {"url": f"{url}/inner/extra.git"}, 69, f"/inner/{refs}"),
        ("private-address", {"url": f"https://{INNER}/extra.git"}, 69, ""),
        ("literal", {"url": f"https://{ADDRESS}/extra.git"}, 2, ""),
        ("other-port", {"url": f"https://{HOST}:8443/extra.git"}, 2, ""),
        ("ssh", {"url": f"ssh://git@{HOST}/extra.git"}, 2, ""),
        ("scp", {"url": f"git@{HOST}:extra.git"}, 2, ""),
        ("file", {"url": f"{extra.url}/"}, 2, ""),
    ):
        commit(control, name, {"extra": {**pin, **changed}})
        preview(node, control, f"main..{name}", code=code, **server.env)
        requests = [line.split(" ") for line in server.take_requests()]
        assert [path for _, path, _ in requests[:1]] == [asked] * bool(asked), name
        assert {address for address, _, _ in requests} <= {ADDRESS6, f"::ffff:{ADDRESS}"}, name
        assert {sent for _, _, sent in requests} <= {""}, name
