"""Modules of the Forge: lock, stage and apply them; failures of a forge."""

import hashlib
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from localpuppet.base.errors import IntegrityError
from localpuppet.node.releases.forge.forge_modules import unpack_module
from localpuppet.node.releases.limits import Budget
from tests.node.make import forge_pin
from tests.rigs.forge import Forge, klass, make
from tests.rigs.module_forge import ModuleForge, archive, serve
from tests.rigs.node import Node
from tests.rigs.tls import Authority

NEEDS = {"name": "puppetlabs/stdlib", "version_requirement": ">= 9.0.0 < 10.0.0"}
STDLIB = "puppetlabs-stdlib-9.4.1.tar.gz"


@pytest.fixture
def modules() -> ModuleForge:
    forge = ModuleForge()
    for version in ("9.0.0", "9.4.0", "9.4.1", "10.0.0"):
        forge.publish("puppetlabs/stdlib", version)
    forge.publish("acme/ntp", "1.0.0", dependencies=[NEEDS])
    return forge


@pytest.fixture
def server(modules: ModuleForge, tmp_path: Path) -> Iterator[str]:
    with serve(modules, Authority(tmp_path)) as url:
        yield url


@pytest.fixture
def site(node: Node, forge: Forge, server: str, tmp_path: Path) -> Node:
    """A node whose source `web` has modules of the Forge."""
    settings(node, forge, {"url": server, "ca": str(tmp_path / "ca.pem")})
    forge.repo("web").commit({"web/manifests/init.pp": klass("web", "web")})
    return node


def settings(node: Node, forge: Forge, place: dict[str, str], **more: object) -> None:
    node.settings(
        allow_file_urls=True,
        sources={"web": {"git": forge.repo("web").url}},
        forge=place,
        **more,
    )


def manifest(forge: Forge, *lines: str) -> None:
    forge.repo("web").write({"manifest.yaml": "modules:\n" + "".join(f"  {x}\n" for x in lines)})


STDLIB_9 = "stdlib: {forge: puppetlabs/stdlib, version: '>= 9.0.0 < 10.0.0'}"
NTP = "ntp: {forge: acme/ntp, version: latest}"


def lock(site: Node, forge: Forge, *options: str) -> dict[str, dict[str, str]]:
    done = make(site, "lock", str(forge.repo("web").path), "--json", *options, code=0)
    pins: dict[str, dict[str, str]] = done.json["modules"]
    return pins


def test_modules_of_the_forge_are_locked_staged_and_applied(
    site: Node, forge: Forge, modules: ModuleForge
) -> None:
    manifest(forge, STDLIB_9, NTP)
    pins = lock(site, forge)
    assert pins["stdlib"]["version"] == "9.4.1"
    assert pins["stdlib"]["archive_sha256"] == hashlib.sha256(modules.files[STDLIB]).hexdigest()
    forge.repo("web").commit({}, "r1")
    site.write("input.yaml", "app: web/tags/r1\nclasses: [web, ntp, stdlib]\n")
    applied = site.run("apply", code=0)
    assert "stdlib 9.4.1" in applied.out
    assert "ntp 1.0.0" in applied.out
    modules.asked.clear()
    site.run("stage", code=0)
    assert modules.asked == []


def test_a_locked_module_stays_until_an_update(
    site: Node, forge: Forge, modules: ModuleForge
) -> None:
    manifest(forge, STDLIB_9, NTP)
    first = lock(site, forge)
    modules.publish("puppetlabs/stdlib", "9.9.0")
    modules.publish("acme/ntp", "2.0.0")
    assert lock(site, forge) == first
    web = str(forge.repo("web").path)
    outdated = make(site, "lock", web, "--outdated", "--json").json["outdated"]
    assert [(item["name"], item["old"], item["new"]) for item in outdated] == [
        ("ntp", "1.0.0", "2.0.0"),
        ("stdlib", "9.4.1", "10.0.0"),
    ]
    moved = make(site, "lock", web, "stdlib", "--update")
    assert moved.out.splitlines()[1].split() == ["stdlib", "9.4.1", "->", "9.9.0"]
    assert lock(site, forge)["ntp"] == first["ntp"]
    assert lock(site, forge, "--update")["ntp"]["version"] == "2.0.0"
    make(site, "lock", web, "nope", "--update", code=2)


def test_a_version_with_other_bytes_is_an_alarm(
    site: Node, forge: Forge, modules: ModuleForge
) -> None:
    manifest(forge, NTP)
    first = lock(site, forge)
    modules.publish("acme/ntp", "1.0.0", text=" again")
    web = str(forge.repo("web").path)
    alarm = make(site, "lock", web, code=3)
    assert "acme/ntp 1.0.0" in alarm.err
    assert "different bytes" in alarm.err
    make(site, "check", web, code=3)
    forge.repo("web").commit({}, "r1")
    site.run("stage", "web/tags/r1", code=3)
    assert not (site.root / "modules/web").exists()
    assert lock(site, forge, "--accept-moved")["ntp"] != first["ntp"]


def test_a_download_that_breaks_off_is_resumed(
    site: Node, forge: Forge, modules: ModuleForge
) -> None:
    name = "acme-ntp-1.0.0.tar.gz"
    modules.cut.add(name)
    manifest(forge, NTP)
    lock(site, forge)
    asked = [headers for path, headers in modules.asked if path.endswith(name)]
    half = len(modules.files[name]) // 2
    assert [headers.get("Range") for headers in asked] == [None, f"bytes={half}-"]


@pytest.mark.parametrize(
    ("release", "what"),
    [
        (archive("acme/other", "1.0.0", {}), "names 'acme-other' '1.0.0'"),
        (archive("acme/ntp", "1.0.1", {}), "names 'acme-ntp' '1.0.1'"),
        (archive("acme/ntp", "1.0.0", {"../evil": "x"}), "a file's name is not allowed"),
        (archive("acme/ntp", "1.0.0", {"a": "x", "a/b": "y"}), "occurs twice"),
        (b"no archive" * 60, "is not a tar file"),
        (archive("acme/ntp", "1.0.0", {"a": "x" * 5000})[:-40], "is damaged"),
    ],
)
def test_an_invalid_archive_is_refused(
    site: Node, forge: Forge, modules: ModuleForge, release: bytes, what: str
) -> None:
    modules.files["acme-ntp-1.0.0.tar.gz"] = release
    manifest(forge, NTP)
    refused = make(site, "lock", str(forge.repo("web").path), code=3)
    assert what in refused.err
    assert refused.err.count("\n") == 1
    assert refused.err.endswith(")\n"), "the message has a cure"


def test_an_archive_that_differs_from_the_digest_of_the_api_is_an_alarm(
    site: Node, forge: Forge, modules: ModuleForge
) -> None:
    modules.lies["acme-ntp-1.0.0.tar.gz"] = "a" * 64
    manifest(forge, NTP)
    make(site, "lock", str(forge.repo("web").path), code=3)


def test_without_sha256_in_the_api_the_lock_pins_the_downloaded_bytes(
    site: Node, forge: Forge, modules: ModuleForge
) -> None:
    modules.silent = True
    manifest(forge, NTP)
    data = modules.files["acme-ntp-1.0.0.tar.gz"]
    assert lock(site, forge)["ntp"]["archive_sha256"] == hashlib.sha256(data).hexdigest()


def test_a_directory_of_archives_is_a_forge(
    node: Node, forge: Forge, modules: ModuleForge, tmp_path: Path
) -> None:
    settings(node, forge, {"url": modules.write(tmp_path / "mirror")})
    manifest(forge, STDLIB_9, NTP)
    pins = lock(node, forge)
    assert pins["stdlib"]["version"] == "9.4.1"
    modules.publish("acme/ntp", "1.0.0", text=" again")
    modules.write(tmp_path / "mirror")
    make(node, "lock", str(forge.repo("web").path), code=3)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("x: {forge: acme/x, version: latest}", "the forge has no module acme/x"),
        ("ntp: {forge: acme/ntp, version: 7.0.0}", "the forge has no release acme/ntp 7.0.0"),
        ("ntp: {forge: acme/ntp, version: '>= 7.0.0'}", "the newest there is 1.0.0"),
        ("clock: {forge: acme/ntp, version: latest}", "name it so: 'ntp: …'"),
        ("ntp: {forge: acme/ntp}", "forge and version go together"),
        ("ntp: {forge: ntp, version: latest}", "is not a module of the Forge"),
        ("ntp: {forge: acme/ntp, version: next}", "is not a version or a range"),
        ("ntp: {git: 'https://x.example/y', tag: v1, branch: b}", "one of tag, commit, branch"),
        ("ntp: {version: latest}", "names neither git nor forge"),
    ],
)
def test_an_unknown_module_or_version_in_a_manifest_is_refused(
    site: Node, forge: Forge, line: str, what: str
) -> None:
    manifest(forge, line)
    refused = make(site, "lock", str(forge.repo("web").path), code=2)
    assert what in refused.err


def test_a_forge_that_does_not_answer_is_unavailable(node: Node, forge: Forge) -> None:
    settings(node, forge, {"url": "https://127.0.0.1:9"}, timeouts={"https": 5})
    manifest(forge, NTP)
    refused = make(node, "lock", str(forge.repo("web").path), code=69)
    assert "cannot be downloaded" in refused.err


def test_with_tags_only_modules_of_the_forge_are_refused(site: Node, forge: Forge) -> None:
    manifest(forge, NTP)
    lock(site, forge)
    web = forge.repo("web")
    web.commit({}, "r1")
    text = (site.root / "localpuppet.yaml").read_text()
    site.write("localpuppet.yaml", text[:-1] + ', "tags_only": true}')
    for refused in (make(site, "lock", str(web.path)), site.run("stage", "web/tags/r1")):
        assert refused.code == 2
        assert "localpuppet.yaml says tags_only" in refused.err


@pytest.mark.parametrize("url", ["http://forge.example.com", "https://a:b@forge.example.com", "x"])
def test_an_invalid_url_of_a_forge_is_refused(node: Node, forge: Forge, url: str) -> None:
    settings(node, forge, {"url": url})
    refused = node.run("release", "list", code=2)
    assert "forge.url" in refused.err
    assert "a:b" not in refused.err


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.DIRTYPE])
def test_a_link_or_directory_with_content_hides_no_members(tmp_path: Path, kind: bytes) -> None:
    """Other programs skip the content; a reader that parses it as headers unpacks other code."""
    hidden = tarfile.TarInfo("m-1.0.0/manifests/hidden.pp")
    hidden.size = 5
    content = hidden.tobuf(tarfile.USTAR_FORMAT) + b"evil\n".ljust(512, b"\0")
    link = tarfile.TarInfo("m-1.0.0/link")
    link.type, link.linkname, link.size = kind, "x", len(content)
    metadata = tarfile.TarInfo("m-1.0.0/metadata.json")
    metadata.size = 2
    file = tmp_path / "m.tar"
    file.write_bytes(
        link.tobuf(tarfile.USTAR_FORMAT)
        + content
        + metadata.tobuf(tarfile.USTAR_FORMAT)
        + b"{}".ljust(512, b"\0")
        + bytes(1024)
    )
    target = tmp_path / "tree"
    target.mkdir()
    with pytest.raises(IntegrityError, match="not an ordinary file"):
        unpack_module(file, target, pin=forge_pin("acme/m"), budget=Budget())
    assert not list(target.rglob("hidden.pp"))
