"""Commands that run no Puppet, as a user calls them."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.rigs.node import Node
from tests.rigs.terminal import in_terminal


def test_the_first_files_are_written_once(node: Node, tmp_path: Path) -> None:
    for name in ("localpuppet.yaml", "input.yaml"):
        (node.root / name).unlink()
    refused = node.run("init")
    assert (refused.code, "pass --source and --release" in refused.err) == (2, True)
    secret = node.run(
        "init", "--source", "https://bob:hunter2@git.example.com/x", "--release", "r1"
    )
    assert (secret.code, "hunter2" in secret.err) == (2, False)
    (tmp_path / "control").mkdir()
    typed = f"{(tmp_path / 'control').as_uri()}\nr7\n"
    written = in_terminal(node, "init", "--role", "web", typed=typed)
    assert written.code == 0, written.out
    files = ("localpuppet.yaml", "input.yaml", "policies/puppet.policy")
    texts = [(node.root / name).read_text() for name in files]
    url = (tmp_path / "control").as_uri()
    assert texts == [
        f'sources:\n  control: {{git: "{url}"}}\nallow_file_urls: true\n',
        'app: control/tags/r7\nparameters: {role: "web"}\n',
        "policy default deny\n",
    ]
    assert all((node.root / name).stat().st_mode & 0o777 == 0o644 for name in files)
    again = node.run("init", "--source", "https://git.example.com/shop.git", "--release", "r1")
    assert again.out.count("kept, as it exists") == 3
    assert [(node.root / name).read_text() for name in files] == texts
    (node.root / "input.yaml").unlink()
    missing = node.run("init", "--source", "https://git.example.com/shop.git", "--release", "r1")
    assert missing.out.count("kept, as it exists") == 2
    assert (node.root / "input.yaml").read_text() == "app: shop/tags/r1\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["apply", "--timeout", "-5"], "timeout"),
        (["apply", "--timeout", "0"], "timeout"),
        (["apply", "--timeout", "nan"], "timeout"),
        (["apply", "--nope"], "--nope"),
        (["status", "../../etc/passwd"], "not a run"),
        (["status", "20261120T140312.482913Z-7f3a"], "not a run"),
        (["report", "20200101"], "not a run"),
        (["logs"], "no run yet"),
        (["why"], "no run yet"),
        (["history", "-n", "0"], "--limit: 0 is less than 1 (see"),
        (["history", "-n", "x"], "--limit: 'x' is not a whole number (see"),
        (["completion", "ksh"], "SHELL: 'ksh' is not one of 'bash', 'zsh', 'fish' (see"),
        (["completion"], "missing argument 'SHELL', one of bash, zsh, fish: the command is"),
        (["nodes", "web01"], "unexpected extra argument (web01): the command is"),
        (["nodes", "web01"], "or run 'localpuppet status --node NODE' (see"),
        (["why", "--node", "web01"], "run 'localpuppet report --node'"),
        (["disable"], "message"),
        (["disable", "-m", "x", "--for", "soon"], "--for: 'soon' is an invalid time"),
        (["disable", "-m", "evil \u202e text"], "control character"),
        (["disable", "-m", "x", "--owner", "a\nb"], "owner"),
        (["enc", "../x"], "node name"),
        (["units", "nope"], "nope"),
        (["bus", "permissions", "nats", "/nonexistent.yaml"], "/nonexistent.yaml"),
        (["bus", "permissions", "kafka", "roster.yaml"], "kafka"),
        (["apply", "http://enc.example.com/x"], "only https://"),
        (["apply", "https://bob:hunter2@enc.example.com/x"], "credentials"),
        (["apply", "/dev/zero"], "not a regular file"),
        (["--root", "/nonexistent", "status"], "/nonexistent"),
        (["apply", "http://bob:hunter2@enc.example.com/x"], "only https://"),
        (["apply", "https://[x"], "is not a URL"),
        (["apply", "https://h:abc/"], "is not a URL"),
        (["apply", ""], "the input's name is empty"),
        (["apply", "--tags", ""], "is not a tag"),
        (["apply", "--tags", "a,"], "is not a tag"),
        (["apply", "--timeout", ""], "timeout"),
        (["check", "/etc"], "a directory, not an input (an input names a release of it; 'localp"),
        (["apply", "manifests/site.pp"], "Puppet code, not an input (an input names a release"),
        (["apply", "web/tags/r1"], "(write 'app: web/tags/r1' into a file, and name that file)"),
        (["apply", "--timeout", "10", "minutes"], "--timeout: a time is one word: 10m (see"),
        (["apply", "--timeout", "1h", "30m"], "--timeout: a time is one word: 1h30m (see"),
        (["disable", "-m", "x", "--for", "2", "hours"], "--for: a time is one word: 2h (see"),
        (["query", "role=web", "and", "os.name=x"], "query: 'role=web and os.name=x'"),
        (["nodes", "--query", "role=web", "or", "x"], "quote the query: 'role=web or x'"),
        (["check", "a", "b"], "unexpected extra argument (b)"),
        (["release", "lock", "/srv"], "/srv: there is no manifest.yaml (create it with the line"),
        (["preview", "--captures", "x/nodes"], "x/nodes: is no directory ('localpuppet"),
        (["disable", "-m", "x", "--for", ""], "--for: '' is an invalid time"),
        (["disable", "-m", "x", "--owner", ""], "owner"),
        (["enable", "--owner", "alice"], "no hold of 'alice'"),
        (["status", "--wait-timeout", "5"], "--wait-timeout requires --wait"),
        (["apply", "--", "--EXECUTE", "x"], "localpuppet sets it itself"),
        (["apply", "--", "--exe", "x"], "localpuppet sets it itself"),
        (["apply", "--", "-de", "x"], "localpuppet sets it itself"),
        (["apply", "--", "--modulep", "x"], "localpuppet sets it itself"),
        (["apply", "--", "--statedir", "x"], "localpuppet sets it itself"),
        (["apply", "--", "--config=x"], "localpuppet sets it itself"),
        (["apply", "--", "extra.pp"], "not an option"),
    ],
)
def test_an_invalid_command_line_gets_one_line_and_exit_code_2(
    node: Node, arguments: list[str], message: str
) -> None:
    done = node.run(*arguments, code=2)
    assert len(done.err.splitlines()) == 1
    assert message in done.err
    assert "hunter2" not in done.err
    assert node.runs() == []


def test_enc_prints_the_document_and_serves_other_nodes_from_inputs(node: Node) -> None:
    expected: dict[str, object] = {"classes": {"foo": {}, "platform": {}}, "parameters": {}}
    assert node.run("enc").out == json.dumps({**expected, "environment": "production"}) + "\n"
    node.run("enc", "web01.example.net", code=0)
    node.write("inputs/web01.example.net.yaml", "app: foo/trunk\nclasses: [platform]\n")
    assert json.loads(node.run("enc", "web01.example.net").out)["classes"] == {"platform": {}}
    missing = node.run("enc", "web02.example.net", code=2)
    assert "inputs/web02.example.net.yaml" in missing.err


def test_the_enc_script_prints_the_document_or_fails_with_a_reason(node: Node) -> None:
    script = node.root / "enc/enc.sh"
    failed = subprocess.run([script, "web01"], capture_output=True, text=True, check=False, env={})
    assert failed.returncode == 1
    assert "node.yaml is not readable" in failed.stdout
    node.write("node.yaml", '{"classes": {}}\n')
    done = subprocess.run([script, "web01"], capture_output=True, text=True, check=True, env={})
    assert done.stdout == '{"classes": {}}\n'


def test_check_warns_about_mutable_releases(node: Node) -> None:
    node.write("input.yaml", "app: foo/tags/r1\nclasses: [foo]\n")
    done = node.run("check", code=0)
    assert "warning: dist/trunk is mutable" in done.err
    assert "foo/tags/r1 is mutable" not in done.err
    assert done.out.endswith("valid\n")
    assert node.run("check", "--json").json["warnings"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("nope: 1", "unknown key 'nope'"),
        ("timeouts: {run: 0}", "timeouts.run: must be more than 0"),
        ("timeouts: {run: .nan}", "YAML readers disagree"),
        ("keep: {runs: 1.5}", "keep.runs: must be a whole number"),
        ("enc: relative/enc", "absolute path"),
        ("modules: 'a:b'", "at which Puppet splits"),
        ("state: .", "directories of their own"),
        ("puppet: {reports: ['a,b']}", "not a report processor"),
        ('state: "a\\0b"', "not allowed there"),
        ("node_document: input.yaml", "must be different files"),
        ("metrics: lock", "must end in .prom"),
    ],
)
def test_an_error_names_the_invalid_setting(node: Node, settings: str, message: str) -> None:
    node.write("localpuppet.yaml", settings + "\n")
    done = node.run("check", code=2)
    assert message in done.err
    assert "enc" in settings or "localpuppet.yaml" in done.err


def test_a_modulepath_outside_the_modules_is_refused(node: Node, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (node.root / "modules/evil").symlink_to(outside)
    node.write("modules/foo/trunk/manifest.yaml", "modulepath: [evil]\n")
    done = node.run("check", code=2)
    assert "points outside" in done.err
    assert "manifest.yaml: modulepath[0]" in done.err


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        ("modulepath: [dist/trunk, dist/trunk]", "twice"),
        ("modulepath: [foo/tags/r1]", "two releases of one source"),
        ("modulepath: [nope/trunk]", "does not exist"),
        ("modulepath: [same]", "on the modulepath already"),
        ("modules: {a: {git: 'http://x/y', tag: r1}}", "modules.a.git: the URL's scheme"),
        ("modules: {a: {git: 'https://x/y', tag: r1}}", "there is no manifest.lock, and the"),
    ],
)
def test_an_error_names_a_part_of_the_manifest(node: Node, manifest: str, message: str) -> None:
    (node.root / "modules/same").symlink_to("foo/trunk")
    node.write("modules/foo/trunk/manifest.yaml", manifest + "\n")
    done = node.run("check", code=2)
    assert message in done.err
    assert "manifest.yaml" in done.err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_exists_for_each_shell(node: Node, shell: str) -> None:
    assert "_LOCALPUPPET_COMPLETE" in node.run("completion", shell).out


def test_status_and_enable_warn_about_a_hold_that_was_made_with_a_wrong_clock(node: Node) -> None:
    node.run("disable", "-m", "x", "--for", "1h", "--owner", "cron", code=0)
    (file,) = (node.state / "holds").glob("*.json")
    raw = json.loads(file.read_text())
    later = {key: f"2099{raw[key][4:]}" for key in ("since", "until")}
    file.write_text(json.dumps({**raw, **later}))
    warning = "the clock was wrong when this hold was created, so its deadline is wrong too"
    status = node.run("status").out
    assert warning in status
    assert "'localpuppet enable --all-owners' ends it" in status
    assert warning in node.run("enable").out
    ended = node.run("enable", "--all-owners")
    assert ended.out.startswith("ended: x (held by cron since 2099-")
    assert warning in ended.out


def test_holds_are_lists_with_json(node: Node) -> None:
    node.run("disable", "-m", "first", "--owner", "a")
    hold = node.run("disable", "-m", "second", "--owner", "b", "--for", "1h", "--json").json
    assert hold["owner"] == "b"
    holds = node.run("status", "--json").json["holds"]
    assert [row["reason"] for row in holds] == ["first", "second"]
    answer = node.run("enable", "--json").json
    assert (answer["ended"], [row["owner"] for row in answer["holds"]]) == ([], ["a", "b"])
    node.run("enable", "--all-owners", "--owner", "a", code=2)
    assert len(node.run("enable", "--all-owners", "--json").json["ended"]) == 2
    assert node.run("enable").out == "there was no hold\n"


def test_colour_follows_terminal_option_and_no_color(node: Node) -> None:
    node.run("disable", "-m", "x")
    coloured = "\x1b[33m"
    assert coloured in in_terminal(node, "status").out
    assert coloured not in in_terminal(node, "status", NO_COLOR="1").out
    assert coloured not in in_terminal(node, "--color", "never", "status").out
    assert "\x1b" not in node.run("status").out
    assert coloured in node.run("--color", "always", "status").out
    in_red = "\x1b[31m"  # an error that the command prints at its end
    assert in_red in in_terminal(node, "logs", "none").out
    assert in_red not in in_terminal(node, "--color", "never", "logs", "none").out
    assert in_red in node.run("--color", "always", "logs", "none").err


def test_a_terminal_shows_the_progress_of_a_run(node: Node) -> None:
    node.app("exec { '/bin/sleep 2': }")
    shown = in_terminal(node, "apply").out
    assert "applying app/trunk" in shown
    assert "# puppet apply of app/trunk" in shown
    assert "--modulepath" not in shown
    shown = in_terminal(node, "apply", "-v", TERM="dumb").out
    assert ("--modulepath" in shown, "applying" in shown) == (True, False)


def test_completion_offers_commands_releases_and_runs(node: Node) -> None:
    def offered(words: str) -> list[str]:
        done = node.run(
            _LOCALPUPPET_COMPLETE="bash_complete",
            COMP_WORDS=f"localpuppet {words}",
            COMP_CWORD=str(len(words.split())),
        )
        return [line.partition(",")[2] for line in done.out.splitlines()]

    assert "status" in offered("st")
    assert offered("stage foo/t") == ["foo/tags/r1", "foo/trunk"]
    assert offered("release diff foo/tags/r1 dist") == ["dist/trunk"]
    assert offered("release verify foo/tr") == ["foo/trunk"]
    applied = '"order": {"foo": ["foo/tags/r1", "foo/tags/r2"]}, "current": {"foo": "foo/tags/r2"}'
    node.write("var/applied.json", f'{{"schema": 1, {applied}}}')
    assert offered("rollback --to r") == ["r2", "r1"]
