"""The meaning of git's messages about a server."""

import pytest

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.node.releases.git.access import ask_failure, fetch_failure, raise_failures

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
