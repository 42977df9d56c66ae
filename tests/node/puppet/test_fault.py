"""The parts of Puppet's messages that leave a node: real messages, and attempts to leak values."""

import json
from pathlib import Path
from typing import Any

import pytest

from localpuppet.node.puppet.fault import (
    MAX_CODE,
    MAX_ERROR,
    FailureCause,
    names_of_code,
    normalized,
)

# From runs of Puppet 7.23, each with one error in the manifest.
CORPUS = json.loads((Path(__file__).parents[2] / "data/puppet-errors.json").read_text())


def fault_of(case: dict[str, Any]) -> FailureCause | None:
    resource = case.get("resource_status")
    if resource is None:
        return FailureCause.of_message(case["error"])
    (message,) = [one["message"] for one in resource["events"] if one["status"] == "failure"]
    return FailureCause.of_resource(resource, message)


@pytest.mark.parametrize("case", CORPUS, ids=[case["name"] for case in CORPUS])
def test_the_failure_cause_of_a_message_has_no_values(case: dict[str, Any]) -> None:
    fault = fault_of(case)
    assert fault is not None
    assert fault.to_dict() == case["fault"]
    assert "hunter2" not in json.dumps(fault.to_dict())


@pytest.mark.parametrize(
    ("text", "place"),
    [
        pytest.param(
            "Evaluation Error: Error while evaluating a Function Call, Could not find class ::nginx"
            " for n{0} (file: /var/lib/localpuppet/store/{0:064x}/site/web/manifests/init.pp,"
            " line: 7, column: 3) on node n{0}",
            "web/manifests/init.pp:7",
            id="on all nodes",
        ),
        pytest.param(
            "Evaluation Error: Error while evaluating a Resource Statement, Evaluation Error: Error"
            " while evaluating a Function Call, Could not find class ::n{0} for n{0} (file:"
            " /etc/puppet/modules/shop/manifests/vhost.pp, line: 12, column: 5) (file:"
            " /etc/puppet/modules/profile/manifests/n{0}.pp, line: {0}) on node n{0}",
            "shop/manifests/vhost.pp:12",
            id="for all users of a defined type",
        ),
    ],
)
def test_an_error_has_one_failure_cause(text: str, place: str) -> None:
    faults = {FailureCause.of_message(text.format(number)) for number in range(1, 300)}
    assert faults == {FailureCause(error="Could not find class … for …", place=place)}


def test_the_place_of_a_duplicate_declaration_is_the_second_declaration() -> None:
    fault = FailureCause.of_message(
        "Evaluation Error: Error while evaluating a Resource Statement, Evaluation Error: Error"
        " while evaluating a Resource Statement, Duplicate declaration: User[deploy] is already"
        " declared at (file: /m/base/manifests/users.pp, line: 3); cannot redeclare (file:"
        " /m/shop/manifests/user.pp, line: 7) (file: /m/shop/manifests/user.pp, line: 7, column: 5)"
        " (file: /m/shop/manifests/init.pp, line: 27) on node web01"
    )
    assert fault is not None
    assert fault.place == "shop/manifests/user.pp:7"
    assert fault.error.startswith("Duplicate declaration: ")


@pytest.mark.parametrize(
    "journal",
    [
        "-- No entries --",
        "-- Logs begin at Mon 2026-11-16 12:07:17 UTC. --\nweb01 systemd[1]: shop.service failed.",
        "Nov 22 10:00:00 web02 shop[991]: shop: bind() failed (98: Address already in use)",
    ],
)
def test_a_service_that_does_not_start_has_one_failure_cause_for_any_journal(journal: str) -> None:
    message = f"Systemd start for shop failed!\njournalctl log for shop:\n{journal}\n"
    assert normalized(message) == "Systemd start for … failed!"


def test_only_error_lines_of_apt_count() -> None:
    packages = "\n".join(f"  libshop{number} using the latest" for number in range(500))
    executed = "Execution of '/usr/bin/apt-get -q -y install shop' returned 100: "
    missing = f"{executed}Reading package lists...\nThe following:\n{packages}\n"
    assert normalized(f"{missing}E: Failed to fetch http://x/shop.deb: 404  Not Found") == (
        "Execution of … returned …: Failed to fetch … Not Found"
    )
    assert normalized(
        f"{missing}E: Unable to correct problems, you have held broken packages."
    ) == ("Execution of … returned …: Unable to correct problems, you have held broken packages")
    locked = "E: Could not get lock /x. It is held by process 42 (unattended-upgr)\nN: Be aware"
    assert normalized(f"{executed}{locked}\nE: Unable to acquire the dpkg frontend lock") == (
        "Execution of … returned … Could not get lock …. It is held by process … Unable to acquire"
        " the dpkg frontend lock"
    )


@pytest.mark.parametrize(
    "secret", ["s3cret", "Tr0ub4dor&3", "correcthorse", "a1b2c3d4e5", "10.0.0.1", "geheim,", "(x9)"]
)
@pytest.mark.parametrize(
    "text",
    [
        *("{}", "Could not find class {} for node", "the password is {}", "value '{}"),
        *("got '{}' \"and {}\" `{}`", "it didn't accept {} as user's password", "failed:{}"),
        *("failed: {}.", "[{}] ({}) {{{}}}", "(file: /etc/{}, line: 3, column: 1)"),
    ],
)
def test_a_word_that_is_not_puppets_never_leaves_the_node(text: str, secret: str) -> None:
    assert secret.strip("(),") not in normalized(text.replace("{}", secret))


def test_titles_and_places_that_are_not_plain_names_are_left_out() -> None:
    status = {"resource": "Exec[curl -u me:s3cret]", "file": "/a/b c.pp", "line": 3}
    assert FailureCause.of_resource(status, "x") == FailureCause(error="…", resource="Exec[…]")
    status = {"resource": "File[/etc/motd]", "file": "/a/site.pp", "line": None}
    assert FailureCause.of_resource(status, "x") == FailureCause(
        error="…", resource="File[/etc/motd]", place="site.pp"
    )
    assert FailureCause.of_resource({}, "") == FailureCause(error="")


def test_a_failure_cause_is_short_for_a_message_of_any_length() -> None:
    assert len(normalized("could not find " * 100_000)) == MAX_ERROR
    assert len(normalized("'\"`([{" * 100_000)) <= MAX_ERROR
    assert FailureCause.of_message("  ") is None


CODE = """
# include comment
class app($port) { $pw = bare
  include 'app::quoted', app::plain
  $a = ['listed'] $b = { 'key' => 'valued' } $c = 'single $dollar' $d = "double ${inter::polated}"
  case $pw { 'option': { } }
  if $pw =~ /it's/ { file { '/etc/motd': require => Package["nginx"] } }
  notice(template("app/x.erb"), app::call(), "\\$escaped", 'after')
}
"""


def test_names_of_a_manifest_are_code_and_no_values() -> None:
    names = names_of_code(CODE)
    assert {"app", "port", "pw", "app::quoted", "app::plain", "inter::polated"} <= names
    assert {"/etc/motd", "nginx", "app/x.erb", "app::call", "Package"} <= names
    values = {"comment", "listed", "key", "valued", "dollar", "double", "option", "escaped", "s"}
    assert not names & (values | {"single $dollar", "after", "bare", "it"})
    assert names_of_code(f"{CODE}$x = @(END)\n secret\n END\n") == frozenset()


def test_names_in_messages_without_a_place_are_of_the_release_or_the_enc(tmp_path: Path) -> None:
    """Puppet names no file for a failed lookup, and none for a class that only the ENC includes."""
    (tmp_path / "own/site/manifests").mkdir(parents=True)
    (tmp_path / "ntp/manifests").mkdir(parents=True)
    code = "class site { lookup('db::port') hiera_hash( \"db::host\" ) $x = 'hunter2' }"
    (tmp_path / "own/site/manifests/init.pp").write_text(code)
    (tmp_path / "ntp/manifests/init.pp").write_text("class ntp(Integer $drift) { }")
    trees = {str(tmp_path / "own"): "", str(tmp_path / "ntp"): "modules/ntp/"}

    def error(message: str) -> str:
        cause = FailureCause.of_message(message, trees, ["ntp::server", "site"])
        return "" if cause is None else cause.error

    lookup = "Function lookup() did not find a value for the name '{}'"
    for key in ("db::port", "db::host"):
        assert error(lookup.format(key)) == lookup.format(key)
    for hidden in ("hunter2", "db::{password}", "absent::key"):
        assert error(lookup.format(hidden)) == lookup.format("…").replace("'", "")
    missing = "Could not find class {} for web01 on node web01"
    assert error(missing.format("ntp::server")) == "Could not find class ntp::server for …"
    assert error(missing.format("hunter2")) == "Could not find class … for …"
    wrong = "Class[Ntp]: parameter 'drift' expects an Integer value, got String on node web01"
    assert error(wrong).startswith("Class[Ntp]: parameter 'drift' expects an Integer value")


@pytest.mark.parametrize(
    "unit", ["/*\n", "\n", '"\\\\', "'\n", "( ", "'a': ", 'file { "a": }', "~ /"]
)
def test_a_huge_manifest_is_read_in_one_pass(unit: str) -> None:
    """A quadratic search would take half an hour."""
    code = "class app { }\n" + unit * ((MAX_CODE - 14) // len(unit))
    assert "app" in names_of_code(code)


@pytest.mark.parametrize(
    "text",
    [
        *("Could not find class ::{} for web01", "Unknown function: '{}'"),
        *("Unknown variable: '{}'", "Could not find template '{}'"),
        "parameter '{}' expects an Integer value",
        *("Duplicate declaration: User[{}] is already declared", "Class[{}]: expects a value"),
        *("{}[title]: expects a value", "source(s) puppet:///modules/{}"),
        *("Operator '{}' is not applicable", "returned {} instead of one of [0]"),
        *("returned 1 instead of one of [{}]", "\x000\x00 {} Unknown variable: 'app'"),
    ],
)
@pytest.mark.parametrize(
    "secret", ["hunter2", "Hunter2", "4711", "comment", "valued", "bare", "listed"]
)
def test_no_value_passes_as_a_name(tmp_path: Path, text: str, secret: str) -> None:
    manifest = tmp_path / "init.pp"
    manifest.write_text(f'{CODE}\n$quoted = "{secret}" # {secret}\n')
    for file in (manifest, tmp_path / "absent.pp", Path("/etc/shadow"), tmp_path):
        place = f" (file: {file}, line: 1, column: 2) on node web01"
        fault = FailureCause.of_message(f"Evaluation Error: {text.replace('{}', secret)}{place}")
        assert secret not in str(fault)
