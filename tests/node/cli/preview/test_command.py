"""`localpuppet preview` with a git repository, real Puppet and three nodes."""

import json
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.machine.processes import own_umask
from localpuppet.node.preview.drawing import MAX_BYTES
from tests.node.cli.preview.control import MAIN, ControlRepository
from tests.rigs.forge import Forge, make, more_settings
from tests.rigs.long import with_sample
from tests.rigs.node import Done, Node, make_node
from tests.rigs.sessions import plain, session, typed

# Code of a branch that removes what it read from the compiler's result.
LIAR = """
Puppet::Functions.create_function(:hour) do
  dispatch(:hour) { param 'Integer', :hour }
  def hour(hour)
    LocalpuppetPreview::Compile.prepend(Module.new do
      def finish(result)
        done = super
        reads = done[:reads] || done['reads']
        reads.each_key { |kind| reads[kind] = reads[kind].is_a?(Hash) ? {} : [] }
        done
      end
    end)
    3
  end
end
"""


@pytest.fixture
def control(tmp_path: Path) -> ControlRepository:
    return ControlRepository(tmp_path)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory, puppet_probe: str) -> Path:
    """Return what a node keeps of a preview of main."""
    top = tmp_path_factory.mktemp("main")
    node = make_node(top / "node", puppet_probe)
    done = preview(node, ControlRepository(top), "main..main", "--json")
    assert (done.code, statistics(done)) == (0, (3, 3)), done.err
    return node.state / "preview"


@pytest.fixture
def node(node: Node, cache: Path) -> Node:
    shutil.copytree(cache, node.state / "preview", symlinks=True)
    return node


def preview(
    node: Node, control: ControlRepository, *arguments: str, code: int | None = None
) -> Done:
    places = ["--dir", str(control.path), "--captures", str(control.nodes)]
    return node.run("preview", *arguments, *places, code=code)


def statistics(done: Done) -> tuple[int, int]:
    assert done.out, done.err
    numbers = done.json["statistics"]
    return numbers["compiled"], numbers["cached"]


def test_a_wrapper_may_withhold_rubyopt_from_puppet(node: Node, control: ControlRepository) -> None:
    """As that of the vendor's packages does."""
    text = '#!/bin/sh\nunset RUBYOPT\nexec /usr/bin/puppet "$@"\n'
    wrapper = node.write("puppet-wrapper", text, 0o755)
    more_settings(node, puppet={"command": str(wrapper)})
    done = preview(node, control, "main...exporter", "--json")
    assert (done.json["nodes"], done.json["unaffected"]) == (3, 0), done.err


def test_a_branch_differs_from_main(node: Node, control: ControlRepository, tmp_path: Path) -> None:
    files = tmp_path / "preview.md", tmp_path / "preview.html"
    done = preview(
        node,
        control,
        "main...exporter",
        "--json",
        *("--markdown", str(files[0]), "--html", str(files[1])),
        code=1,
    )
    result = done.json
    assert (result["schema"], result["nodes"], result["unaffected"]) == (2, 3, 0)
    (failure,) = result["failures"]
    assert (failure["kind"], failure["node"]) == ("new", "db01.example.com")
    assert (failure["file"], failure["line"]) == ("modules/role/manifests/db.pp", 1)
    assert "Could not find class ::monitoring" in failure["message"]
    (group,) = result["groups"]
    assert group["nodes"] == ["web01.example.com", "web02.example.com"]
    assert group["roles"] == ["web"]
    changes: dict[str, dict[str, Any]] = {
        f"{item['type']}[{item['title']}]": item for item in group["difference"]["resources"]
    }
    assert {name: item["action"] for name, item in changes.items()} == {
        "Class[Web]": "changed",
        "File[/etc/nginx/key]": "changed",
        "File[/etc/nginx/nginx.conf]": "changed",
        "Service[nginx-exporter]": "added",
    }
    (content,) = changes["File[/etc/nginx/nginx.conf]"]["parameters"]
    assert "-  listen 80;\n+  listen 8080;\n   server_name ⟨fqdn⟩;" in content["text"]
    (secret,) = changes["File[/etc/nginx/key]"]["parameters"]
    assert secret["before"] == secret["after"] == {"__ptype": "Sensitive"}
    assert statistics(done) == (3, 3), "the cache has the catalogs of main"
    markdown, page = (file.read_text("utf-8") for file in files)
    assert len(markdown.encode()) <= MAX_BYTES
    for text in (done.out, markdown, page):
        assert "CANARY" not in text
    assert "modules/role/manifests/db.pp:1" in markdown
    assert "modules/role/manifests/db.pp:1" in page
    assert {oct(file.stat().st_mode & 0o777) for file in files} == {"0o600"}
    again = preview(node, control, "main...exporter", "--json")
    assert statistics(again) == (0, 6)
    assert {**again.json, "statistics": None} == {**result, "statistics": None}
    assert node.runs() == [], "a preview applies no catalog"


@pytest.fixture
def releases(node: Node, control: ControlRepository) -> str:
    lock = {"manifest.lock": "version: 1\nmodules: {}\nsources: {}\n"}
    for tag, branch in (("r1", "main"), ("r2", "exporter")):
        control.git("checkout", "-q", branch)
        control.commit(lock, "lock")
        control.git("tag", "-a", "-m", tag, tag)
    more_settings(node, sources={"site": {"git": f"file://{control.path}"}}, allow_file_urls=True)
    for tag in ("r1", "r2"):
        node.run("stage", "--no-parse", f"site/tags/{tag}", code=0)
    return "site/tags/r1..site/tags/r2"


def test_staged_releases_are_compared_for_named_nodes_without_a_clone(
    node: Node, control: ControlRepository, releases: str, tmp_path: Path
) -> None:
    places = "--staged", "--captures", str(control.nodes), "--dir", str(tmp_path)
    done = node.run("preview", releases, *places, "--node", "web02.example.com", "--json", code=0)
    assert (done.json["nodes"], done.json["head"]["name"]) == (1, "site/tags/r2")
    (group,) = done.json["groups"]
    assert group["nodes"] == ["web02.example.com"]
    part = node.run("preview", releases, *places, "--fragment", "-")
    assert part.code == 1, "db01 does not compile"
    assert part.out.startswith('<div class="preview')
    assert "Could not find class ::monitoring" in part.out
    assert "<style" not in part.out
    assert "CANARY" not in part.out
    again = node.run("preview", releases, *places, "--json")
    assert statistics(again) == (0, 6)
    back = node.run("preview", "site/tags/r2..site/tags/r1", *places, "--json")
    assert statistics(back)[0] == 3, "what untrusted code compiled is no base"
    missing = node.run("preview", releases, *places, "--node", "x1.example.com")
    assert (missing.code, "capture --node x1.example.com" in missing.err) == (2, True)
    node.run("preview", "site/tags/r1", *places, code=2)
    unknown = node.run("preview", "site/tags/r1..site/tags/r9", *places)
    assert "'localpuppet stage site/tags/r9'" in unknown.err


def test_uncommitted_changes_are_previewed(node: Node, control: ControlRepository) -> None:
    control.git("checkout", "-q", "main")
    unchanged = preview(node, control, "--exit-code", code=0)
    assert unchanged.out.startswith("3 nodes: 3 unaffected\nHEAD (")
    control.write({"data/common.yaml": "web::port: 80\nbackup::hour: 4\n"})
    done = preview(node, control, "--exit-code", "--json", code=4)
    assert [group["nodes"] for group in done.json["groups"]] == [["db01.example.com"]]
    assert statistics(done) == (1, 5), "localpuppet compiles only nodes that look up the key"
    preview(node, control, "--exit-code", "--ignore", "File::content", "--ignore", "Class", code=0)
    forbidden = preview(node, control, "--fail-on", "changed:File[/etc/backup*]", code=1)
    assert "Forbidden by --fail-on:\n  changed:File[/etc/backup*]: File[/etc/backup.conf]" in (
        forbidden.out
    )


@pytest.mark.parametrize("committed", [True, False], ids=["commit", "work tree"])
def test_code_that_lies_about_its_reads_changes_no_other_preview(
    node: Node, control: ControlRepository, *, committed: bool
) -> None:
    control.git("checkout", "-q", "main")
    control.git("checkout", "-q", "-b", "hostile")
    plain_class = MAIN["modules/backup/manifests/init.pp"]
    files = {
        "modules/backup/lib/puppet/functions/hour.rb": LIAR,
        "modules/backup/manifests/init.pp": plain_class.replace(
            'content => "hour = ${hour}\\n"',
            'content => "hour = ${hour($hour)}\\n", mode => "0777"',
        ),
    }
    control.write(files)
    hostile = "main"
    if committed:
        control.commit(files, "hostile")
        hostile = "main...hostile"
    shown = [preview(node, control, hostile, "--json").json for _ in range(2)]
    assert [page["groups"][0]["nodes"] for page in shown] == [["db01.example.com"]] * 2
    assert shown[0]["groups"] == shown[1]["groups"]
    if not committed:
        control.git("stash", "-q", "-u")
    control.git("checkout", "-q", "-b", "honest", "main")
    control.commit({"data/common.yaml": "web::port: 80\nbackup::hour: 4\n"}, "honest")
    honest = preview(node, control, "main...honest", "--json").json
    text = json.dumps(honest["groups"])
    assert "hour = 4" in text
    assert "0777" not in text


def test_a_custom_fact_is_a_blind_spot(node: Node, control: ControlRepository) -> None:
    control.git("checkout", "-q", "main")
    control.write({"modules/web/lib/facter/x.rb": "Facter.add(:x) { setcode { 1 } }\n"})
    done = preview(node, control, "--exit-code", code=5)
    assert "  modules/web/lib/facter/x.rb: a custom fact changed\n    db01.example.com," in done.out


def test_code_that_no_release_uses_is_named(node: Node, control: ControlRepository) -> None:
    control.git("checkout", "-q", "main")
    control.commit({"manifest.yaml": "{}\n"}, "as few settings as possible")
    control.write({"manifests/site.pp": "notify { 'new': }\n", "Puppetfile": "mod 'acme/ntp'\n"})
    done = preview(node, control, "--markdown", "-")
    assert "3 unaffected" in done.out
    assert "`manifests/site.pp: not used: the manifest has no moduledir" in done.out
    assert "`Puppetfile:1: ntp is not in the manifest" in done.out
    texts = [item["text"] for item in preview(node, control, "--json").json["warnings"]]
    assert texts == [*dict.fromkeys(texts)]
    control.write({"manifest.yaml": "moduledir: modules\n"})
    named = preview(node, control).out
    assert "HEAD: manifests/site.pp: not used" in named
    assert "  work tree: Puppetfile:1: ntp is not in the manifest" in named
    assert "work tree: manifests/site.pp" not in named


def test_a_locked_module_has_data(node: Node, control: ControlRepository, tmp_path: Path) -> None:
    node.settings(allow_file_urls=True)
    data = Forge(tmp_path).repo("hieradata")
    for tag, port in (("d1", 80), ("d2", 8081)):
        data.commit({"data/common.yaml": f"web::port: {port}\nbackup::hour: 3\n"}, tag)
        locked = f"modules:\n  hieradata: {{git: '{data.url}', tag: {tag}}}\n"
        hiera = MAIN["hiera.yaml"].replace("datadir: data", "datadir: modules/hieradata/data")
        control.write({"manifest.yaml": MAIN["manifest.yaml"] + locked, "hiera.yaml": hiera})
        make(node, "lock", str(control.path), code=0)
        control.commit({"data/common.yaml": "web::port: 1\n"}, tag)
    done = preview(node, control, "HEAD~1..HEAD", "--json")
    assert done.json["impure"] == []
    (group,) = done.json["groups"]
    (port,) = (
        parameter
        for item in group["difference"]["resources"]
        for parameter in item["parameters"]
        if item["title"] == "Web"
    )
    assert (port["name"], port["before"], port["after"]) == ("port", 80, 8081)
    again = preview(node, control, "HEAD~1..HEAD", "--json")
    assert statistics(again) == (0, 6)


def test_parts_of_the_nodes_fill_one_cache(node: Node, control: ControlRepository) -> None:
    parts = [
        preview(node, control, "exporter..exporter", "--json", "--shard", f"{number}/2").json
        for number in (1, 2)
    ]
    assert sum(part["nodes"] for part in parts) == 3
    assert [part["shard"] for part in parts] == ["1/2", "2/2"]
    assert [part["statistics"]["compiled"] > 0 for part in parts] == [True, True]
    assert statistics(preview(node, control, "exporter..exporter", "--json")) == (0, 6)


def lock_extra(control: ControlRepository, node: Node, top: Path, **files: str) -> None:
    """Write a manifest with the module `extra`, and its lock, beside more files."""
    node.settings(allow_file_urls=True)
    module = Forge(top).repo("extra")
    module.commit({"manifests/init.pp": "class extra { }\n"}, "v1")
    pin = f"moduledir: modules\nmodules:\n  extra: {{git: '{module.url}', tag: v1}}\n"
    control.write({"manifest.yaml": pin, **files})
    node.run("release", "lock", str(control.path), code=0)


def test_parts_that_run_at_a_time_share_a_root_and_a_cache(
    node: Node, control: ControlRepository, tmp_path: Path
) -> None:
    lock_extra(control, node, tmp_path)
    control.commit({}, "a module")
    places = ["--dir", str(control.path), "--captures", str(control.nodes), "--shard"]
    jobs = [node.start("preview", "HEAD..HEAD", *places, f"{number}/2") for number in (1, 2)]
    done = [node.finish(job) for job in jobs]
    assert not [each.err for each in done if each.err]


def with_module_of_the_job(control: ControlRepository, node: Node, top: Path) -> None:
    """Write a lock whose module is a directory of the job, and code that shows a file of it."""
    job = top / "job"
    (job / "files").mkdir(parents=True)
    (job / "files/token").write_text("SECRET-OF-THE-JOB")
    shows = "class role::web { file { '/x': content => file('extra/token') } }\n"
    lock_extra(control, node, top, **{"modules/role/manifests/web.pp": shows})
    lock = control.path / "manifest.lock"
    lock.write_text(f'{lock.read_text()}paths:\n  extra: "{job}"\n')


def test_a_commit_or_an_untrusted_work_tree_names_no_directory_of_the_job(
    node: Node, control: ControlRepository, tmp_path: Path
) -> None:
    control.git("checkout", "-q", "main")
    with_module_of_the_job(control, node, tmp_path)
    done = preview(node, control, "main", code=2)
    assert "manifest.lock: paths.extra: is a work tree of the machine that locked it (" in done.err
    done = preview(node, control, "main", "--trusted", "--json")  # the user's own
    assert (done.code, "SECRET-OF-THE-JOB" in done.out) == (0, True), done.err
    control.git("checkout", "-qb", "hostile")
    control.commit({}, "hostile")
    for trusted in ([], ["--trusted"]):
        done = preview(node, control, "main..hostile", *trusted)
        assert (done.code, "SECRET-OF-THE-JOB" in done.out) == (2, False)
        assert "hostile: " in done.err
        assert "manifest.lock: paths.extra: is a work tree of the machine" in done.err


@pytest.mark.parametrize("mask", with_sample([0o000, 0o077], 0o077))
def test_the_umask_of_the_caller_does_not_count(
    node: Node, control: ControlRepository, mask: int
) -> None:
    with own_umask(mask):
        done = preview(node, control, "main..exporter", "--json", "--html", str(node.root / "x"))
        assert done.code == 1, done.err  # db01 fails to compile with the branch
        assert (done.json["changed"], len(done.json["failures"])) == (2, 1)
        (control.path / "untracked").write_text("")
    preview(node, control, "main", "--json", code=1)


def compilers(scratch: Path) -> list[str]:
    """Return the processes that isolate a compiler whose files are below a directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"{scratch}/compile-".encode() in (process / "cmdline").read_bytes():
                found.append(process.name)
    return found


@pytest.mark.parametrize(
    "number", with_sample(["INT", "TERM", "HUP", "QUIT", "KILL"], "TERM", "KILL")
)
def test_an_end_leaves_no_process(node: Node, control: ControlRepository, number: str) -> None:
    """What a killed one leaves is removed by the next."""
    control.git("checkout", "-q", "-b", "hangs")  # the last preview must not wait for it
    hangs = "Puppet::Functions.create_function(:hangs) { def hangs; sleep 600; end }\n"
    control.write({"modules/web/lib/puppet/functions/hangs.rb": hangs})
    control.commit({"modules/role/manifests/web.pp": "class role::web { hangs() }\n"}, "hangs")
    places = ["--dir", str(control.path), "--captures", str(control.nodes)]
    scratch = node.state / "compiles"
    running = node.start("preview", "HEAD..HEAD", *places)
    node.wait_until(lambda: compilers(scratch))
    running.send_signal(getattr(signal, f"SIG{number}"))
    done = node.finish(running)
    code = {"INT": 130, "KILL": -9}.get(number, 128 + getattr(signal, f"SIG{number}"))
    assert done.code == code, done.err
    assert "Traceback" not in done.err
    if number == "KILL":
        assert list(scratch.glob("compile-*"))
        preview(node, control, "main..exporter", code=1)
    assert not list(scratch.glob("compile-*"))
    assert not [
        path for path in (node.state / "preview/releases").iterdir() if path.name.startswith(".")
    ]
    node.wait_until(lambda: not compilers(scratch))


def test_a_cache_that_cannot_be_written_is_named(
    node: Node, control: ControlRepository, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o500)
    node.inside = ["setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override"]
    done = preview(node, control, "main..main", "--cache", str(cache), code=1)
    assert f"{cache}: the cache is not writable (" in done.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["..HEAD"], "is not a range of revisions"),
        (["main..--upload-pack=x"], "is not a range of revisions"),
        (["nowhere..main"], "there is no commit 'nowhere'"),
        (["main..main", "--ignore", "file"], "--ignore: is not a pattern for resources: 'file'"),
        (["main..main", "--fail-on", "Service"], "--fail-on: does not begin with an action"),
        (["main..main", "--shard", "9/8"], "--shard: is not a part of the nodes: '9/8'"),
        (["main..main", "--json", "--html", "-"], "choose one to print"),
        (["main..main", "--html", "/nowhere/x.html"], "/nowhere/x.html: is in no directory"),
    ],
)
def test_an_invalid_command_line_gets_a_message_of_one_line(
    node: Node, control: ControlRepository, arguments: list[str], message: str
) -> None:
    done = preview(node, control, *arguments, code=2)
    assert message in done.err
    assert done.err.count("\n") == 1


def test_an_error_names_files_of_the_revision(node: Node, control: ControlRepository) -> None:
    modules = "modules: {ntp: {forge: acme/ntp, version: 1.0.0}}\n"
    control.commit({"manifest.yaml": MAIN["manifest.yaml"] + modules}, "a module")
    problem = "there is no manifest.lock, and the manifest has modules"
    for revisions, name in (("main..exporter", "exporter"), ("main", "work tree")):
        done = preview(node, control, revisions, code=2)
        cure = "run 'localpuppet release lock .'"
        assert done.err.endswith(f"localpuppet: error: {name}: {problem} ({cure})\n")


def test_a_cache_among_the_captures_is_refused(node: Node, control: ControlRepository) -> None:
    for cache in (control.nodes, control.nodes / "cache"):
        done = preview(node, control, "main..main", "--cache", str(cache), code=2)
        assert "is in the directory of the captures" in done.err
        assert "pass another directory with '--cache'" in done.err
    assert not (control.nodes / "cache").exists()


def test_failures_as_before_can_be_forgiven(node: Node, control: ControlRepository) -> None:
    (control.nodes / "db01.example.com.yaml").write_text("facts: {}\nclasses: [missing]\n")
    for words, code in ((["--fail-on", "new-failure"], 0), ([], 1)):
        done = preview(node, control, "main..main", *words, code=code)
        assert "1 node fails to compile as before:" in done.out


def test_the_how_to_shows_the_output_of_the_command(node: Node, control: ControlRepository) -> None:
    shutil.rmtree(node.state / "preview")
    for _, command, printed in session("how-to/preview-changes.md", ["$ "]):
        output = typed(node, command, root=node.root, directory=control.path)
        assert plain(output.splitlines()) == plain(printed)
