"""Access to repositories: proxies, ssh keys, and credentials that only their host receives."""

import base64
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from localpuppet.base.errors import IntegrityError, InvalidInputError, UnavailableError
from localpuppet.base.http import HttpError
from localpuppet.node.releases.git.access import (
    GitAccess,
    access_for,
    ask_failure,
    check_credentials,
    fetch_failure,
    raise_failures,
    rewrite_url,
)
from localpuppet.node.releases.git.git_names import GitUrl
from localpuppet.node.releases.git.mirrors import Git
from localpuppet.node.releases.git.program import GitProgram, PublicAccess, repository_at
from tests.node import make
from tests.rigs.connect_proxy import ConnectProxy, serve_proxy
from tests.rigs.node import Node
from tests.rigs.pages import PageHandler, Pages, pages

SECRET = b"username=oauth2\npassword=glpat-s3cret\n"
BASIC = "Basic " + base64.b64encode(b"oauth2:glpat-s3cret").decode()


def test_settings_of_a_source_apply_to_its_repository_and_then_to_its_host() -> None:
    shop, infra = GitAccess(proxy="http://shop:1"), GitAccess(proxy="http://infra:1")
    known = {
        "https://git.example.com/shop/control.git": shop,
        "https://git.example.com/infra/control.git": infra,
        "git@ssh.example.com:shop/control.git": shop,
    }
    for url, expected in (
        ("https://git.example.com/infra/control.git", infra),
        ("https://git.example.com/shop/ntp.git", shop),
        ("https://git.example.com/infra/ntp.git", infra),
        ("ssh://git@ssh.example.com/other.git", shop),
        ("https://git.example.com.evil.example/infra/ntp.git", GitAccess()),
        ("https://github.com/acme/ntp", GitAccess()),
    ):
        assert access_for(url, known) == expected, url


def test_a_key_and_known_hosts_become_options_of_ssh(tmp_path: Path) -> None:
    raw = {"ssh_key": "keys/my key", "known_hosts": "keys/known"}
    access = GitAccess.from_dict(raw, where="sources.a", root=tmp_path)
    assert access.environment() == {
        "GIT_SSH_COMMAND": f"ssh -oBatchMode=yes -oIdentitiesOnly=yes -i '{tmp_path}/keys/my key'"
        f" -oUserKnownHostsFile={tmp_path}/keys/known -oStrictHostKeyChecking=yes"
    }
    assert GitAccess().environment() == {}
    assert GitAccess().options("https://git.example.com/a.git") == []


def test_a_proxy_with_credentials_is_refused_and_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidInputError, match=r"sources\.a\.proxy: is not an allowed URL"
    ) as refused:
        raw = {"proxy": "http://user:s3cret@proxy"}
        GitAccess.from_dict(raw, where="sources.a", root=tmp_path)
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    "data", [b"", b"token", b"username=a\n", b"username=a\npassword=\n", SECRET + b"host=evil\n"]
)
def test_an_invalid_file_of_credentials_is_refused_without_its_content(data: bytes) -> None:
    with pytest.raises(InvalidInputError, match="is not a file of credentials") as refused:
        check_credentials(data, where="keys/git")
    assert "s3cret" not in str(refused.value)
    check_credentials(SECRET, where="keys/git")


def demand_password(handler: PageHandler) -> None:
    status = 404 if handler.headers["Authorization"] else 401
    handler.send(status, headers={"WWW-Authenticate": 'Basic realm="git"'})


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[Pages]:
    """A server that requires a password."""
    with pages(tmp_path) as server:
        server.answers = defaultdict(lambda: demand_password)
        yield server


def credentials(server: Pages) -> list[str | None]:
    return [headers.get("Authorization") for _, headers in server.requests]


def noting_git(directory: Path, access: Callable[[str], GitAccess], **env: str) -> Git:
    """Return a git that trusts the test's authority, and notes its words and environment."""
    program = directory / "bin" / "git"
    program.parent.mkdir()
    program.write_text(
        f"#!/bin/sh\n{{ printf '%s\\n' \"$@\"; env; }} >> {directory}/noted\n"
        f'GIT_SSL_CAINFO={directory}/ca.pem exec /usr/bin/git "$@"\n'
    )
    program.chmod(0o755)
    env = {"PATH": f"{program.parent}:/usr/bin:/bin", **env}
    return make.git(directory / "mirrors", env=env, allow_file=False, access=access)


def test_git_sends_credentials_only_to_their_host(tmp_path: Path, asking: Pages) -> None:
    url = asking.url
    (tmp_path / "git credentials").write_bytes(SECRET)
    mine = GitAccess(credentials=tmp_path / "git credentials")
    known = {f"{url}/a.git": mine, "https://elsewhere.example/a.git": mine}
    git = noting_git(tmp_path, lambda asked: access_for(asked, known))
    with pytest.raises(UnavailableError):
        git.refs([GitUrl.parse(f"{url}/b.git", where="")])
    assert credentials(asking) == [None, BASIC]
    asking.requests.clear()
    known[f"{url}/a.git"] = GitAccess()
    with pytest.raises(UnavailableError):
        git.refs([GitUrl.parse(f"{url}/a.git", where="")])
    assert credentials(asking) == [None]
    noted = (tmp_path / "noted").read_text()
    assert "ls-remote" in noted
    assert "s3cret" not in noted


def test_git_uses_the_proxy_of_a_source_and_sends_it_no_credentials(
    tmp_path: Path, asking: Pages
) -> None:
    (tmp_path / "credentials").write_bytes(SECRET)
    proxy = ConnectProxy(elsewhere=asking.address)
    with serve_proxy(proxy) as place:
        mine = GitAccess(proxy=place, credentials=tmp_path / "credentials")
        git = noting_git(tmp_path, lambda _asked: mine, https_proxy="http://127.0.0.1:1")
        with pytest.raises(UnavailableError):
            git.refs([GitUrl.parse("https://localhost:1/a.git", where="")])
    assert credentials(asking) == [None, BASIC]
    assert set(proxy.places) == {"localhost:1"}
    assert all("authorization" not in str(headers).lower() for _, headers in proxy.heard)


def test_git_reaches_public_code_at_the_given_addresses_only(tmp_path: Path, asking: Pages) -> None:
    """The certificate of the server, which is not for that name, shows that git connected."""
    _, port = asking.address
    git = make.git(
        tmp_path / "mirrors",
        env={"PATH": "/usr/bin:/bin", "https_proxy": "http://127.0.0.1:1"},
        access=lambda _asked: PublicAccess(addresses=("127.0.0.1",)),
    )
    with pytest.raises(UnavailableError, match=r"(?i)certificate"):
        git.refs([GitUrl.parse(f"https://no-dns-has-it.invalid:{port}/a.git", where="")])
    with pytest.raises(UnavailableError, match="transport 'file' not allowed"):
        git.refs([GitUrl.parse(f"file://{tmp_path}", where="", allow_file=True)])


def test_only_git_commands_with_network_access_get_the_proxy(tmp_path: Path) -> None:
    noted = tmp_path / "noted"
    program = tmp_path / "bin" / "git"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\n{{ echo "$*"; env; }} >> {noted}\nexit 1\n')
    program.chmod(0o755)
    env = {"PATH": f"{program.parent}:/bin", "https_proxy": "http://u:pw@p", "no_proxy": "x"}
    git = GitProgram(env=env, allow_file=False, timeout=60)
    with pytest.raises(IntegrityError):
        git.run(tmp_path, "cat-file")
    assert "http://u:pw@p" not in noted.read_text()
    with pytest.raises(IntegrityError):
        git.ask("https://git.example.com/a.git", tmp_path, "fetch")
    assert "https_proxy=http://u:pw@p\n" in noted.read_text()
    assert "no_proxy=x\n" in noted.read_text()


def test_an_error_names_the_invalid_setting_of_a_source(node: Node) -> None:
    git = "https://git.invalid/a.git"
    for body, problem in (
        ({"proxy": "ftp://x"}, "sources.a.proxy: is not an allowed URL"),
        ({"credentials": "keys/git"}, "sources.a.credentials"),
        ({"ssh_key": 1}, "sources.a.ssh_key"),
    ):
        node.settings(sources={"a": {"git": git, **body}})
        refused = node.run("status", code=2)
        assert problem in refused.err
    node.write("keys/git", "glpat-s3cret\n", mode=0o600)
    node.settings(sources={"a": {"git": git, "credentials": {"file": "keys/git"}}})
    refused = node.run("stage", "a/tags/r1", code=2)
    assert "keys/git: is not a file of credentials" in refused.err
    assert "s3cret" not in refused.err


def test_the_longest_matching_prefix_is_rewritten_once() -> None:
    rewrite = {
        "https://a.example/": "https://b.example/",
        "https://a.example/x/": "ssh://git@c.example/",
        "https://b.example/": "https://d.example/",
        "https://a.example/one.git": "https://e.example/other.git",
        "git@a.example:": "https://b.example/",
    }
    for url, address in (
        ("https://a.example/y/z.git", "https://b.example/y/z.git"),
        ("https://a.example/x/z.git", "ssh://git@c.example/z.git"),
        ("https://a.example/one.git", "https://e.example/other.git"),
        ("https://a.example/one.git2", "https://b.example/one.git2"),
        ("git@a.example:y/z.git", "https://b.example/y/z.git"),
        ("https://a.example.evil/y", "https://a.example.evil/y"),
    ):
        assert rewrite_url(url, rewrite) == address


REFS = "/info/refs?service=git-upload-pack"


@pytest.mark.parametrize(
    "address",
    [
        "https://git.example.com/login",
        f"https://me:s3cret@git.example.com/b{REFS}",
        f"https://git.example.com/../b{REFS}",
        f"https://git.example.com/b?x=1{REFS}",
        f"https://git.example.com/b|c{REFS}",
        f"https://git.example.com/-b c{REFS}",
        f"http://git.example.com/b{REFS}",
        f"https://git.example.com/{'b' * 1024}{REFS}",
    ],
    ids=range(8),
)
def test_a_redirect_leads_only_where_a_lock_may(address: str) -> None:
    moved = repository_at(f"https://git.example.com/b.git{REFS}", where="https://example.com/a")
    assert moved == "https://git.example.com/b.git"
    with pytest.raises((HttpError, InvalidInputError)) as refused:
        repository_at(address, where="https://example.com/a")
    assert "s3cret" not in str(refused.value)


URL = "https://git.example.com/web.git"


@pytest.mark.parametrize(
    ("output", "shown", "hint"),
    [
        (
            "ssh: Could not resolve hostname git.example.com: Name or service not known;"
            " fatal: Could not read from remote repository.;"
            " Please make sure you have the correct access rights; and the repository exists.",
            "Name or service not known",
            "DNS",
        ),
        (f"fatal: unable to access '{URL}/': Could not resolve host: x", "resolve host", "DNS"),
        ("fatal: Failed to connect to x port 443: Connection refused", "refused", "firewall"),
        ("git@x: Permission denied (publickey).", "publickey", "check 'ssh_key' and 'credentials'"),
        ("fatal: repository 'https://x/' not found", "not found", "check the URL"),
        ("Host key verification failed.", "verification", "known_hosts"),
        ("something new", "something new", ""),
    ],
)
def test_the_error_of_a_failed_fetch_has_a_cure(output: str, shown: str, hint: str) -> None:
    for error in (
        fetch_failure(URL, ["r1"], output, name="web"),
        ask_failure(URL, output, name="web"),
    ):
        assert isinstance(error, UnavailableError)
        assert error.where == f"source web, {URL}"
        assert shown in error.what
        assert "Please make sure" not in error.what
        assert hint in error.hint
        assert "tag" not in error.hint


def test_a_missing_tag_is_an_error_of_the_input() -> None:
    error = fetch_failure(URL, ["r9"], "fatal: couldn't find remote ref refs/tags/r9")
    assert isinstance(error, InvalidInputError)
    assert str(error).startswith(f"{URL}: has no tag r9 (")


def test_one_error_names_a_host_that_is_unreachable_for_many_repositories() -> None:
    refused = "Failed to connect to git.example.com port 443 after {} ms: Connection refused"
    urls = [f"https://git.example.com/m{i}.git" for i in range(7)]
    errors = [
        fetch_failure(url, [f"v{i}"], f"fatal: unable to access '{url}/': {refused.format(i)}")
        for i, url in enumerate(urls)
    ]
    other = fetch_failure("https://x.example.com/a.git", ["v1"], "fatal: repository 'a' not found")
    unavailable = [e for e in (*errors, other) if isinstance(e, UnavailableError)]
    assert len(unavailable) == 8
    with pytest.raises(UnavailableError) as caught:
        raise_failures(unavailable)
    message = str(caught.value)
    assert message.count("Connection refused") == 1
    assert message.startswith(
        f"https://git.example.com: cannot fetch 7 repositories: {refused.format(0)}: {urls[0]}, "
    )
    assert "and 2 more (no connection: check the network" in message
    assert message.endswith(str(other))


def test_the_error_of_one_repository_stays_as_it_is() -> None:
    error = fetch_failure(URL, ["r1"], "fatal: Could not resolve host: git.example.com", name="web")
    assert isinstance(error, UnavailableError)
    with pytest.raises(UnavailableError) as caught:
        raise_failures([error])
    assert caught.value is error
    raise_failures([])
