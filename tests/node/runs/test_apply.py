"""`localpuppet apply` with the real Puppet: effects, output and records."""

import json
import re
import shlex
import signal
import sys
from pathlib import Path

import pytest

from tests.rigs.node import REPOSITORY, Node, shell

ESCAPES = "\x1b[31mRED\x1b]0;pwn\x07"


def test_the_sample_is_applied_and_recorded(node: Node) -> None:
    done = node.run("apply", code=0)
    first, *_ = done.out.splitlines()
    modules = f"{node.root}/modules"
    assert first.startswith(f"# LOCALPUPPET_ROOT={node.root} /usr/bin/puppet apply ")
    assert "--node_terminus exec --external_nodes " in first
    assert f"--modulepath {modules}/foo/trunk:{modules}/dist/trunk" in first
    assert first.endswith("/default.pp")
    assert "Notice: I notify you!" in done.out
    assert "Notice: platform class" in done.out
    status = node.status()
    assert (status["state"], status["outcome"], status["exit_code"]) == ("finished", "changed", 2)
    assert status["resources"]["changed"] == 2
    run = node.state / "runs" / status["id"]
    report = json.loads((run / "report.json").read_text())
    assert report["configuration_version"] == "foo/trunk"
    files = {path.name for path in run.iterdir()}
    assert files == {"log", "report.json", "request.json", "status.json"}
    assert "I notify you!" in (run / "log").read_text()
    request = json.loads((run / "request.json").read_text())
    assert request["node_document"]["classes"] == {"foo": {}, "platform": {}}
    open_to_others = {path.name for path in node.state.iterdir() if path.stat().st_mode & 0o007}
    assert open_to_others == {"metrics.prom"}
    assert run.stat().st_mode & 0o777 == 0o700
    assert (node.root / "node.yaml").stat().st_mode & 0o777 == 0o600


def test_the_printed_command_can_be_pasted_and_does_not_change_the_record(node: Node) -> None:
    node.app("notify { 'hello': }")
    first = node.run("apply")
    node.wait_until(node.has_compiled)
    before = {path: path.read_bytes() for path in node.state.rglob("*") if path.is_file()}
    pasted = shell(first.out.splitlines()[0].removeprefix("# "))
    assert "Notice: hello" in pasted
    assert {path: path.read_bytes() for path in node.state.rglob("*") if path.is_file()} == before


def test_the_node_name_is_the_certname_of_puppet(node: Node) -> None:
    """Node definitions, $trusted, Hiera and the ENC get it as with 'puppet apply --certname'."""
    name = "web01.example.com"
    enc = node.write("asked", "#!/bin/sh\nprintf 'parameters: {asked: %s}' $1\n", 0o755)
    node.settings(node=name, enc=str(enc))
    node.app("")
    names = "${trusted['certname']} ${facts['clientcert']}"
    manifest = node.write(
        "manifests/default.pp",
        f"node '{name}' {{ notify {{ \"{names}\": }} }}\nnode default {{ fail('another node') }}\n",
    )
    done = node.run("apply", code=0)
    assert f"Notice: {name} {name}\n" in done.out
    line = done.out.splitlines()[0]
    assert f" --certname {name} " in line
    directories = {part: node.root / "bare" / part for part in ("conf", "var")}
    options = " ".join(f"--{part}dir {path}" for part, path in directories.items())
    bare_run = shell(f"puppet apply {options} --certname {name} {manifest}")
    assert f"Notice: {name} {name}" in bare_run
    ssl = [sorted(path.rglob("*")) for path in (node.root / "puppet", node.root / "bare")]
    own, bare = ({path.name for path in found if "ssl" in path.parts} for found in ssl)
    assert own == bare, "Puppet uses the same key files as 'puppet apply --certname'"
    request = json.loads(next(node.state.glob("runs/*/request.json")).read_text())
    assert request["node_document"]["parameters"] == {"asked": name}
    node.write("modules/app/trunk/hiera.yaml", "version: 5\n")
    node.write("modules/app/trunk/data/common.yaml", "name: '%{trusted.certname}'\n")
    assert node.run("lookup", "name").out == f"{name}\n"


def test_values_reach_puppet_unchanged_and_the_terminal_escaped(node: Node) -> None:
    target = node.root / "result"
    node.app(
        f"file {{ '{target}': content => $text }}\nnotify {{ $text: }}".replace(
            "$text", "$app::text"
        )
    )
    init = node.root / "modules/app/trunk/app/manifests/init.pp"
    init.write_text(init.read_text().replace("class app {", "class app ($text) {"))
    text = f"{ESCAPES} no 012 1:30 é 😀 \u2028"
    node.write(
        "input.yaml",
        json.dumps({"app": "app/trunk", "classes": {"app": {"text": text}}}).replace(
            "\\ud83d\\ude00", "😀"
        ),
    )
    done = node.run("apply", code=0)
    assert target.read_text() == text
    assert "\x1b" not in done.out
    assert "\\x1b[31mRED" in done.out
    for verb in ("logs", "why", "status", "history"):
        shown = node.run(verb).out
        assert "\x1b" not in shown
        assert "\x07" not in shown


def test_status_shows_what_is_applied_behind_noop_runs(node: Node) -> None:
    node.app("notify { 'hello': }")
    assert node.run("status", "--json").json["applied"] is None
    node.run("apply", code=0)
    real = node.status()["id"]
    node.app("fail('not yet')")
    for command in (["apply", "--noop"], ["try", str(node.root / "modules/app/trunk"), "--noop"]):
        node.run(*command, code=1)
        shown = node.run("status")
        assert shown.code == 0, "the exit code is that of the last real run"
        assert "State  failed" in re.sub(" +", "  ", shown.out)
        assert re.search(rf"Applied +app/trunk: changed, .* ago +\[run {real}\]", shown.out)
        assert "Failing" not in shown.out
        assert node.run("status", "--json").json["applied"]["id"] == real
        assert node.run("status", "-1").code == (1 if command[0] == "try" else 0)
    node.run("apply", code=1)
    node.run("apply", "--noop", code=1)
    node.run("status", code=1)
    assert node.run("status", "-1", "--json").json["applied"] is None


def test_a_noop_run_changes_nothing_and_reports_pending_changes(node: Node) -> None:
    target = node.root / "result"
    node.app(f"file {{ '{target}': content => 'x' }}")
    done = node.run("apply", "--noop", "--detailed-exitcodes", code=0)
    assert not target.exists()
    status = node.status()
    assert (status["outcome"], status["noop"], status["noop_pending"]) == ("unchanged", True, True)
    words = "8 resources, 1 would change"
    assert f", {words}, " in done.out
    for command in ("status", "history", "report"):
        shown = node.run(command).out
        assert words in shown
        assert shown.count("would change") == 1
    report = node.run("report", "--json").json
    assert [row["resource"] for row in report["would_change"]] == [f"File[{target}]"]
    assert "Would change 1" in shown


def test_detailed_exit_codes_are_those_of_puppet(node: Node) -> None:
    target = node.root / "result"
    node.app(f"file {{ '{target}': content => 'x' }}")
    node.run("apply", "--detailed-exitcodes", code=2)
    node.app(f"file {{ '{target}': content => 'y' }} exec {{ '/bin/false': }}")
    node.run("apply", "--detailed-exitcodes", code=6)
    node.run("apply", "--detailed-exitcodes", code=4)
    assert node.status()["failure_cause"] == {
        "error": "… returned 1 instead of one of [0]",
        "resource": "Exec[/bin/false]",
        "place": "app/manifests/init.pp:2",
    }


def test_tags_and_options_are_passed_to_puppet(node: Node) -> None:
    node.app("notify { 'one': tag => 'a' } notify { 'two': tag => 'b' }")
    done = node.run("apply", "--tags", "a", "--", "--debug")
    assert "Notice: one" in done.out
    assert "Notice: two" not in done.out
    assert "Debug: " in done.out


def test_an_input_can_be_a_named_file_or_standard_input(node: Node, tmp_path: Path) -> None:
    node.app("notify { 'hello': }")
    other = node.write("other.yaml", (node.root / "input.yaml").read_text())
    node.write("input.yaml", "app: none/trunk\n")
    node.run("check", str(other), code=0)
    node.run("check", code=2)
    environment = f"LOCALPUPPET_ROOT={node.root} PYTHONPATH={REPOSITORY}"
    piped = shell(f"cat {other} | {environment} {sys.executable} -m localpuppet check -")
    assert "standard input" in piped


def test_a_detached_run_outlives_its_caller_and_status_waits_for_it(node: Node) -> None:
    node.app(node.gate_code())
    started = node.run("apply", "--detach")
    run = started.out.strip()
    assert started.code == 0
    assert node.recorded()["state"] in ("queued", "running")
    assert node.status()["id"] == run
    busy = node.run("apply", code=75)
    assert run in busy.err
    waiting = node.start("status", "--wait", run, "--json")
    node.open_gate()
    waited = node.finish(waiting, code=0)
    assert waited.json["run"]["outcome"] == "changed"
    assert "executed successfully" in node.run("logs", run).out


def test_a_detached_run_is_cancelled_and_a_finished_one_is_not(node: Node) -> None:
    node.app(node.gate_code())
    run = node.run("apply", "--detach").out.strip()
    cancelled = node.run("cancel", code=0)
    assert f"cancelling {run}: see 'localpuppet status --wait'" in cancelled.out
    assert node.run("status", "--wait", "--json").json["run"]["outcome"] == "cancelled"
    again = node.run("cancel", run)
    assert (again.code, f"the run {run} is over" in again.err) == (2, True)


def test_follow_shows_the_log_to_its_end(node: Node) -> None:
    node.app("notify { 'early': } -> exec { '/bin/sleep 2': } -> notify { 'late': }")
    node.run("apply", "--detach")
    followed = node.run("logs", "--follow")
    assert "early" in followed.out
    assert "Notice: late" in followed.out


def test_puppet_facts_shows_facts_of_modules_with_the_modulepath_of_the_run(node: Node) -> None:
    """As docs/how-to/publish-the-inventory.md says."""
    node.app("notify { \"the role ${facts['app_role']}\": }")
    fact = "Facter.add(:app_role) { setcode { 'web' } }\n"
    node.write("modules/app/trunk/app/lib/facter/app_role.rb", fact)
    assert "Notice: the role web" in node.run("apply").out
    directories = " ".join(f"--{part}dir {node.root}/puppet/{part}" for part in ("conf", "var"))
    modulepath = ":".join(node.run("why", "--json").json["request"]["modulepath"])
    shown = shell(f"puppet facts show app_role {directories} --modulepath {modulepath}")
    assert '"app_role": "web"' in shown


def test_an_environment_of_the_input_does_not_restart_the_run(node: Node) -> None:
    node.app('notify { "in ${environment}": }')
    text = json.loads((node.root / "input.yaml").read_text())
    node.write("input.yaml", json.dumps({**text, "environment": "canary"}))
    done = node.run("apply", code=0)
    assert "Notice: in canary" in done.out
    assert "restarting" not in done.out


def test_programs_that_puppet_starts_get_environment_and_umask_of_the_caller(node: Node) -> None:
    node.app(
        "notify { 'größer': }\n"
        f"exec {{ '/usr/bin/env > {node.root}/env': path => '/bin', provider => shell }}"
    )
    own = {"RUBYOPT": "-W0", "RUBY_GC_HEAP_GROWTH_FACTOR": "1.5", "LC_ALL": "C"}
    # Of localpuppet's own unit; OpenVox 9 would take it for its own and change its owner.
    unit = {"RUNTIME_DIRECTORY": str(node.root / "unit")}
    done = node.run("apply", PYTHONUTF8="1", **own, **unit, code=0)
    assert "Notice: größer" in done.out, "Puppet uses UTF-8 with any locale"
    lines = dict(line.partition("=")[::2] for line in (node.root / "env").read_text().splitlines())
    assert {name: lines.get(name) for name in own} == own
    assert not {"RUBY_GC_HEAP_INIT_SLOTS", *unit} & lines.keys()
    own_names = ("LOCALPUPPET_UNSET", "LOCALPUPPET_LC", "LOCALPUPPET_LOCK")
    assert not [name for name in lines if name.startswith(own_names)]
    assert (node.root / "env").stat().st_mode & 0o777 == 0o644


def test_ctrl_c_ends_puppet_and_is_recorded(node: Node) -> None:
    node.app("exec { '/bin/sleep 60': }")
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 1)):
        process = node.start("apply")
        puppet = node.wait_running()["puppet"]["pid"]
        process.send_signal(number)
        node.finish(process, code=code)
        status = node.status()
        assert status["outcome"] == "cancelled"
        assert not Path(f"/proc/{puppet}").exists()


def test_the_result_of_a_partial_run_names_its_tags(node: Node) -> None:
    node.app("notify { 'a': tag => 'web' } notify { 'b': }")
    done = node.run("apply", "--noop", "--tags", "web,db")
    assert "(noop) (only --tags web,db)" in node.run("status").out
    assert "# unchanged, noop, only --tags web,db, " in done.out
    assert "only --tags web,db; " in node.run("history").out
    node.run("apply", "--", "--skip_tags=web", code=0)
    status = node.status()
    assert (status["partial"], status["part"]) == (True, "--skip_tags=web")
    assert "app/trunk (only --skip_tags=web)" in node.run("why").out
    typed = re.search(r"^Command +(.*)$", node.run("why", "--full").out, re.MULTILINE)
    assert typed is not None
    assert shlex.split(typed[1]) == node.run("why", "--json").json["request"]["command"]


def test_tags_in_puppet_conf_count_until_the_command_line_replaces_them(node: Node) -> None:
    node.app("notify { 'a': tag => 'web' } notify { 'b': } notify { 'c': tag => 'old' }")
    conf = "[agent]\ntags = nothing\n[user]\ntags = web, old\n[main]\ntags = b\nskip_tags = old\n"
    node.write("puppet/conf/puppet.conf", conf)
    done = node.run("apply", code=0)
    assert "message: defined 'message' as 'a'" in done.out
    assert "as 'b'" not in done.out
    assert "as 'c'" not in done.out
    status = node.status()
    assert status["partial"]
    assert status["part"] == "--tags web, old (puppet.conf) --skip_tags old (puppet.conf)"
    assert "warning: puppet.conf: tags is set: runs apply a part" in done.err
    node.run("apply", "--tags", "b")
    assert node.status()["part"] == "--tags b --skip_tags old (puppet.conf)"
    node.write("puppet/conf/puppet.conf", "[agent]\ntags = nothing\n[master]\nskip_tags = a\n")
    whole = node.run("apply")
    assert "puppet.conf" not in whole.err
    assert "as 'b'" in whole.out
    assert not node.status()["partial"]


def test_a_run_uses_the_tags_that_its_record_names(node: Node) -> None:
    """The ENC, which the run asks after it has read puppet.conf, changes the file."""
    conf = node.root / "puppet/conf/puppet.conf"
    enc = f"#!/bin/sh\nprintf '[main]\\ntags = nothing\\n' > {conf}\necho 'classes: {{}}'\n"
    node.settings(enc=str(node.write("asked", enc, 0o755)))
    node.app("notify { 'a': }")
    done = node.run("apply", code=0)
    assert conf.exists()
    assert "as 'a'" in done.out
    assert not node.status()["partial"]


def test_puppet_conf_decides_neither_the_catalog_nor_when_a_run_begins(node: Node) -> None:
    node.app("notify { 'of the release': }")
    conf = (
        "[main]\ncatalog_cache_terminus = json\n"
        "[user]\nsplay = true\nsplaylimit = 100000000\nuse_cached_catalog = true\n"
        "catalog_terminus = yaml\ncode = \"notify{'x':}\"\n"
    )
    node.write("puppet/conf/puppet.conf", conf)
    done = node.run("apply", "--timeout", "120", code=0)
    assert "as 'of the release'" in done.out
    assert not (node.root / "puppet/var/client_data/catalog").exists()


def test_storeconfigs_of_puppet_conf_is_named(node: Node) -> None:
    node.app("notify { 'a': }")
    node.write("puppet/conf/puppet.conf", "[main]\nstoreconfigs = true\n")
    assert "puppet.conf: storeconfigs is set" in node.run("check").err


CYCLE = "notify { ['a', 'b']: } Notify['a'] -> Notify['b'] -> Notify['a']"


@pytest.mark.parametrize(
    ("setting", "code", "words", "cause"),
    [
        ("prerun_command", "", "Puppet applied nothing: Could not run command", "prerun_command"),
        ("postrun_command", "", "exited 1 after it applied the catalog", "postrun_command"),
        ("graph = true\n#", CYCLE, "exited 1 while it applied the catalog (failed): ", ""),
    ],
)
def test_a_failure_around_the_catalog_is_told_from_one_after_it(
    node: Node, setting: str, code: str, words: str, cause: str
) -> None:
    node.app(code)
    node.write("puppet/conf/puppet.conf", f"[main]\n{setting} = /bin/false\n")
    node.run("apply", code=1)
    status = node.status()
    assert words in status["reason"]
    assert cause in status["reason"]
    assert cause in status["failure_cause"]["error"]
