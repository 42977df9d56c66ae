"""Hostile code in a release has no access, and does not affect other compiles."""

import json
import os
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.base.machine.child import Cgroup
from localpuppet.base.machine.isolation import SYSTEM, Bounds, CodeIsolation, run
from localpuppet.base.machine.own_program import shared_file
from localpuppet.node.preview import engine as engine_module
from localpuppet.node.preview.compile_request import LAYOUT, CompileResult
from localpuppet.node.preview.engine import (
    LIMITS,
    MAX_MESSAGE,
    MAX_NAME,
    MAX_REASONS,
    ReleaseCompiler,
)
from localpuppet.node.preview.read_set import ReadSet
from localpuppet.node.preview.release_index import ReleaseIndex, TreeStates, index_roots
from localpuppet.node.puppet.command_line import COMPILED
from tests.node.preview.rig import (
    PATH,
    compile_all,
    compiled_ruby,
    make_engine,
    release_in,
    request,
    write,
)
from tests.rigs.puppet_wrapper import OTHER_VERSION, make_wrapper, probe
from tests.rigs.waiting import wait_until

pytestmark = pytest.mark.puppet
GIB = 1024**3


def _function(body: str) -> str:
    return f"Puppet::Functions.create_function(:'m::run') do\n  def run; {body}; end\nend\n"


# Attack → Ruby code. `nil.to_s` compiles.
ATTACKS = {
    "reads a secret": "File.read('/etc/shadow')",
    "reads the job's secret": "File.read(SECRET)",
    "reads the environment": "ENV.fetch('JOB_SECRET')",
    "reads the parent's environment": "File.read('/proc/1/environ')[/JOB_SECRET=\\w+/].to_str",
    "opens a socket": "TCPSocket.new('127.0.0.1', PORT).to_s",
    "writes into the release": "File.write(File.join(__dir__, 'x'), 'x').to_s",
    "never ends": "loop { }",
    "takes memory": "('x' * (10 * 1024**3)).size.to_s",
    "forks": "loop { fork { sleep } }",
    "leaves the process": "exit!(0)",
    "is killed": "Process.kill(:KILL, Process.pid)",
    "crashes": "Process.kill(:SEGV, Process.pid); sleep",
    "changes the system": "File.write('/usr/bin/x', 'x').to_s",
    "prints a long result": "('x' * (100 * 1024**2))",
    "makes a user namespace": "system('unshare -Ur true') ? 'made' : nil.to_str",
    "takes memory in several programs": (
        "3.times.map { fork { y = 'x' * 250_000_000; sleep 2; exit!(y.size & 0) } }"
        ".map { |pid| Process.wait2(pid)[1].success? }.all? ? 'together' : nil.to_str"
    ),
    "leaves a program that takes memory": (
        "r, w = IO.pipe; fork { fork { Process.setsid; sleep 2; w.write('x') }; exit!(0) }"
        "; w.close; r.read.empty? ? nil.to_str : 'left'"
    ),
    "starts many threads": "80.times.map { Thread.new { sleep 2 } }.each(&:join).size.to_s",
    "takes memory of no program": (
        "C.call('memfd_create', Fiddle::Pointer['x'].to_i, 0).negative? ? nil.to_str : 'taken'"
    ),
    "shares memory": "C.call('mmap', 0, 4096, 3, 0x21, -1, 0) == -1 ? nil.to_str : 'shared'",
    "fills its directory": "99.times { |i| File.write(\"/tmp/x#{i}\", 'x' * 10**6) }; 'filled'",
    "opens a socket to itself": "UNIXSocket.pair.to_s",
    "opens the memory of its parent": "File.open(\"/proc/#{Process.ppid}/mem\", 'r+').to_s",
    "changes compiled Ruby": (
        "File.open(\"/proc/self/fd/#{PACK.fileno}\", 'r+') { |pack| pack.write('x') }.to_s"
    ),
    "maps compiled Ruby": (
        "C.call('mmap', 0, 4096, 3, 1, PACK.fileno, 0) == -1 ? nil.to_str : 'mapped'"
    ),
    "sees compiled Ruby": "Dir.children(COMPILED).to_s",
    "reads keys": "C.call('syscall', KEYCTL, 0, -3, 1).negative? ? nil.to_str : 'read'",
}
# Calls a function of the C library; the compiled Ruby that a compile inherits.
CALLS = """
LOADER = LocalpuppetCompiledRuby.instance_variable_get(:@loader)
PACK = LOADER.instance_variable_get(:@pack).instance_variable_get(:@file)
require 'fiddle'
KEYCTL = { 'x86_64' => 250, 'aarch64' => 219 }.fetch(RbConfig::CONFIG['host_cpu'])
C = lambda do |name, *given|
  words = [Fiddle::TYPE_LONG_LONG] * given.size
  Fiddle::Function.new(Fiddle::Handle::DEFAULT[name], words, Fiddle::TYPE_LONG_LONG).call(*given)
end
"""
# Attacks on the process that all compiles share.
PARENT = {
    "kills its parent": "Process.kill(:KILL, Process.ppid); Process.kill(:TERM, Process.ppid); 'x'",
    "prints": ("2000.times { $stdout.puts('{\"id\": 1, \"bytes\": 1}'); $stderr.puts('x') }; 'x'"),
    "writes to all descriptors": (
        "(3..64).each { |n| IO.for_fd(n, autoclose: false).syswrite(\"{}\\n\") rescue nil }; 'x'"
    ),
    "leaves a program": "fork { Process.setsid; sleep }; 'x'",
}


def hostile(
    tmp_path: Path, attacks: dict[str, str], constants: str = "", limits: Mapping[str, int] = LIMITS
) -> dict[str, CompileResult]:
    """Return the result of each attack; assert that a node before and one after them compile."""
    files, nodes = {}, ["node 'first', 'last' { notify { 'fine': } }"]
    for number, body in enumerate(attacks.values()):
        code = f"{constants}\n{_function(body)}".replace("m::run", f"m::run{number}")
        files[f"modules/m/lib/puppet/functions/m/run{number}.rb"] = code.replace(
            "def run;", f"def run{number};"
        )
        nodes.append(f"node 'n{number}' {{ notify {{ \"${{m::run{number}()}}\": }} }}")
    release = write(tmp_path / "r", {"site.pp": "\n".join(nodes), **files})
    engine = make_engine(tmp_path / "e", trusted=False, processes=2, limits=limits)
    names = ["first", *(f"n{number}" for number in range(len(attacks))), "last"]
    results = compile_all(engine, release, [request(name) for name in names])
    assert results["first"].failure is None
    assert results["last"].failure is None
    assert not (release.directory / "modules/m/lib/puppet/functions/m/x").exists()
    return {name: results[f"n{number}"] for number, name in enumerate(attacks)}


def test_hostile_code_has_no_access(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {**LIMITS, "seconds": 20}
    limits |= {"memory": 512 * 1024**2, "result": 32 * 1024**2}
    monkeypatch.setenv("JOB_SECRET", "canary")
    secret = tmp_path / "secret"
    secret.write_text("canary")
    with socket.create_server(("127.0.0.1", 0)) as server:
        accepted: list[object] = []
        thread = threading.Thread(target=_accept, args=(server, accepted))
        thread.start()
        constants = f"{CALLS}\nSECRET = '{secret}'\nPORT = {server.getsockname()[1]}"
        constants += f"\nCOMPILED = '{compiled_ruby()[0][COMPILED]}'"
        results = hostile(tmp_path, ATTACKS, constants, limits)
        socket.create_connection(server.getsockname()).close()
        thread.join()
    assert len(accepted) == 1  # the connection of the test
    for attack, result in results.items():
        assert result.catalog is None, attack
        assert result.failure is not None, attack
        assert "canary" not in result.failure.message, attack


def test_an_isolated_compile_loads_puppet_from_compiled_ruby(tmp_path: Path) -> None:
    loader = "LocalpuppetCompiledRuby.instance_variable_get(:@loader)"
    counts = f"[:@pack, :@missed].map {{ |name| {loader}.instance_variable_get(name) }}"
    function = _function(f"pack, missed = {counts}; pack.entries.size / missed.size > 2")
    site = "if m::run() { notify { 'loaded': } }"
    files = {"site.pp": site, "modules/m/lib/puppet/functions/m/run.rb": function}
    release = write(tmp_path / "r", files)
    for trusted in (False, True):
        engine = make_engine(tmp_path / "e", trusted=trusted)
        (result,) = engine.compile(release, [request()])
        assert result.catalog is not None, result.failure
        assert "loaded" in {one.title for one in result.catalog.resources}


@pytest.fixture
def memory_cgroup() -> None:
    """A machine whose cgroups limit memory, which those of a chroot may not."""
    groups = Cgroup.limited({"memory": GIB})
    files = [file.name for group in groups for file in group.processes.parent.glob("memory.*")]
    for group in groups:
        group.remove()
    if not {"memory.max", "memory.limit_in_bytes"}.intersection(files):
        pytest.skip("this machine lets no process create a cgroup that limits memory")


@pytest.mark.usefixtures("memory_cgroup")
def test_limits_count_for_all_programs_of_a_compile(tmp_path: Path) -> None:
    limits = {**LIMITS, "memory": 512 * 1024**2, "seconds": 60}
    several = {
        name: ATTACKS[name]
        for name in ATTACKS
        if name.startswith(("takes memory in several", "starts"))
    }
    failed = [result.failure for result in hostile(tmp_path, several, limits=limits).values()]
    messages = sorted(failure.message for failure in failed if failure)
    assert messages == ["has more than 536870912 bytes of memory", "has more than 64 programs"]


PROGRAM = """c = %d.times.map { fork { x = 'x' * 60_000_000; sleep 2; exit!(x.size & 0) } }
    p c.map { |pid| Process.wait2(pid)[1].success? }.count(true)"""


@pytest.mark.usefixtures("memory_cgroup")
@pytest.mark.parametrize(("count", "all_of_them"), [(1, True), (4, False)])
def test_a_cgroup_limits_memory_in_total(tmp_path: Path, count: int, *, all_of_them: bool) -> None:
    ruby = [shutil.which("ruby", path=PATH) or "ruby", "--disable=gems", "-e", PROGRAM % count]
    limited = CodeIsolation(path=PATH, memory=160 * 1024**2, programs=64, otherwise="")
    bounds = Bounds(seconds=120, output=4096, errors=4096, memory=GIB)
    with limited.command(ruby, (), tmp_path) as command:
        done = run(command, env={"PATH": PATH}, cwd=Path("/"), bounds=bounds)
        groups = isolation_groups()
    assert groups
    assert not isolation_groups() & groups
    assert (done.out == f"{count}\n".encode()) is all_of_them


def isolation_groups() -> set[Path]:
    return set(Path("/sys/fs/cgroup").rglob(f"localpuppet-isolated-{os.getpid()}-*"))


def test_directories_of_the_job_are_hidden_also_below_those_of_programs(tmp_path: Path) -> None:
    (tmp_path / "job/root/release").mkdir(parents=True)
    for name in ("job/secret", "job/root/key", "job/root/release/site.pp", "program"):
        (tmp_path / name).write_text("x")
    hiding = CodeIsolation(
        path=PATH,
        memory=GIB,
        programs=64,
        otherwise="",
        hidden=(tmp_path / "job/root",),
        system=(*SYSTEM, str(tmp_path)),
    )
    find = ["/usr/bin/find", str(tmp_path), "/usr/src", "/usr/local", "-type", "f"]
    bounds = Bounds(seconds=60, output=65536, errors=4096, memory=GIB)
    tmp_path.chmod(0o755)
    root = Path(tempfile.mkdtemp())
    with hiding.command(find, [tmp_path / "job/root/release"], root) as command:
        done = run(command, env={"PATH": PATH}, cwd=Path("/"), bounds=bounds)
    root.rmdir()
    names = {Path(line).relative_to(tmp_path) for line in done.out.decode().splitlines()}
    assert {str(name) for name in names} == {"job/root/release/site.pp", "program"}


def _accept(server: socket.socket, accepted: list[object]) -> None:
    connection, _ = server.accept()
    accepted.append(connection.getpeername())
    connection.close()


def test_a_compile_does_not_end_or_change_other_compiles(tmp_path: Path) -> None:
    results = hostile(tmp_path, PARENT)
    failed = {attack for attack, result in results.items() if result.failure}
    assert failed <= {"kills its parent", "writes to all descriptors"}
    # A killed process ends a moment later; a process that outlives the engine does not end.
    wait_until(
        lambda: not _processes_that_see(tmp_path), lambda: str(_processes_that_see(tmp_path))
    )


def _processes_that_see(directory: Path) -> set[str]:
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if f"{directory}/" in (entry / "mountinfo").read_text():
                    found.add(entry.name)
            except OSError:
                continue
    return found


def _forged(text: str) -> str:
    """Return code that sends a text in place of the result `v`."""
    return (
        "JSON.singleton_class.prepend(Module.new { define_method(:generate) { |v, *rest, **more|"
        f" v.is_a?(Hash) && v.key?(:reads) ? {text} : super(v, *rest, **more) }} }}); 'x'"
    )


QUERY = "{ answer: 1, function: %s }"
LONG, TEXT = "'f' * 5000, arguments: []", "'f', arguments: 'text'"
# What code of a release sends as its result → the failure that its node gets.
FORGED = {
    "'[' + '[],' * 1_000_000 + '[]]'": "more than 1000000 values",
    "'[' * 200 + ']' * 200": "nested too deep",
    "'{'": "cannot be read",
    "'[]'": "an unexpected message",
    '\'{"failure": {"line": NaN}}\'': "NaN is not JSON",
    '\'{"failure": {"message": "\\ud800"}}\'': "surrogates not allowed",
    "super(v.merge(reads: {}))": "unexpected result",
    "super(v.merge(reads: v[:reads].merge(files: [1])))": "not a text",
    "super(v.merge(reads: v[:reads].merge(files: ['x' * 5000])))": "too long",
    "super(v.merge(reads: v[:reads].merge(files: 'text')))": "not a list",
    "super(v.merge(catalog: v[:catalog].merge('name' => 'first')))": "of another node",
    "super(v.merge(catalog: v[:catalog].merge('name' => 1)))": "not a text",
    "super(v.merge(catalog: v[:catalog].merge('classes' => [[]])))": "not a text",
    "super(v.tap { |r| r[:catalog]['resources'][0]['title'] = {} })": "not a text",
    "super(v.tap { |r| r[:catalog]['resources'][0]['line'] = 'x' })": "not a number",
    "super(v.tap { |r| r[:catalog]['resources'][0]['parameters'] = 1 })": "",
    "super(v.merge(failure: { message: 'x' * 1_000_000, file: 'y' * 9_000, line: 1 }))": "xxx",
    "super(v.merge(failure: 1))": "unexpected result",
    f"super(v.merge(failure: {{ message: 'm', file: nil, line: {'9' * 5000} }}))": "64 bits",
    "super(v.tap { |r| r[:catalog]['resources'][0]['line'] = 2**63 })": "64 bits",
    "super(v.tap { |r| r[:catalog]['resources'][0]['parameters'] = { 'a' => 10**5000 } })": "64 b",
    "super(v.merge(reads: v[:reads].merge(queries: 1)))": "unexpected result",
    "super(v.merge(reads: v[:reads].merge(queries: [1])))": "unexpected result",
    "super(v.merge(reads: v[:reads].merge(queries: [{}])))": "unexpected result",
    f"super(v.merge(reads: v[:reads].merge(queries: [{QUERY % '[], arguments: []'}])))": "a text",
    f"super(v.merge(reads: v[:reads].merge(queries: [{QUERY % LONG}])))": "too long",
    f"super(v.merge(reads: v[:reads].merge(queries: [{QUERY % TEXT}])))": "not a list",
    "super(v.merge(reads: v[:reads].merge(impure: [1])))": "not a text",
    "super(v.merge(reads: v[:reads].merge(impure: ['x' * 5000])))": "too long",
    "super(v.merge(reads: v[:reads].merge(impure: { a: 1 })))": "not a list",
}


def test_a_forged_result_fails_its_own_node(tmp_path: Path) -> None:
    attacks = {text: _forged(text) for text in FORGED}
    for text, result in hostile(tmp_path, attacks).items():
        assert result.catalog is None, text
        assert result.failure is not None, text
        assert FORGED[text] in result.failure.message, text
        assert len(result.failure.message) <= MAX_MESSAGE, text
        assert len(result.failure.file or "") <= MAX_NAME, text


def test_a_forged_reason_or_query_is_kept_as_a_text(tmp_path: Path) -> None:
    """A reason with CI commands is printed later; see `render.CommandFreeStream`."""
    command = "\n::error::x\n##[error]"
    query = "{ function: 'f', answer: 1, arguments: [{ 'b' => [nil] }] }"
    changed = "super(v.merge(reads: v[:reads].merge(%s)))"
    attacks = {
        "impure": _forged(changed % f"impure: [{json.dumps(command)}] * 99"),
        "queries": _forged(changed % f"queries: [{query}]"),
    }
    results = hostile(tmp_path, attacks)
    assert results["impure"].reads.impure == (command,) * MAX_REASONS
    roots = index_roots(release_in(tmp_path / "r"), tmp_path / "none")
    index = ReleaseIndex.of(roots, TreeStates())
    index.states[LAYOUT] = "layout"
    made = ReadSet.of(results["queries"].reads, request("n"), index)
    assert isinstance(made, ReadSet)
    assert made.node.queries == ('["f", [{"b": [null]}]]',)


def test_a_forged_result_does_not_ask_for_files_of_the_job(tmp_path: Path) -> None:
    """Whether they exist shows nowhere, and localpuppet does not look for them."""
    secret = tmp_path / "secret"
    secret.write_text("canary")
    names = [str(secret), "/dev", "/proc/self/environ", "../secret", "a\0b", "/nowhere"]
    kinds = ("files", "absent", "present", "listed")
    texts = {
        f"{kind}: {name}": _forged(
            f"super(v.merge(reads: v[:reads].merge({kind}: [{json.dumps(name)}])))"
        )
        for kind in kinds
        for name in names
    }
    texts |= {
        f"keys: {name}": _forged(
            f"super(v.merge(reads: v[:reads].merge(keys: {{ {json.dumps(name)} => ['k'] }})))"
        )
        for name in names
    }
    results = hostile(tmp_path, texts)
    release = release_in(tmp_path / "r")
    index = ReleaseIndex.of(index_roots(release, tmp_path / "none"), TreeStates())
    index.states[LAYOUT] = "layout"
    for text, result in results.items():
        kind, _, name = text.partition(": ")
        assert result.failure is None, (text, result.failure)
        made = ReadSet.of(result.reads, request("n"), index)
        assert index.state(name) is None
        assert index.listing(name) is None
        refused = f"{name} changed while it was read, or is not a file of the release"
        assert (made == refused) == (kind in ("files", "present", "keys")), text


def test_only_code_of_the_release_and_the_store_is_shown(tmp_path: Path) -> None:
    """The second line of defence against a lock that names a directory of the job."""
    release = write(tmp_path / "r", {"site.pp": ""})
    (tmp_path / "job").mkdir()
    (tmp_path / "links").mkdir()
    (tmp_path / "links/x").symlink_to("../job")
    engine = replace(make_engine(tmp_path / "e", trusted=False), store=(tmp_path / "links",))
    for place in (tmp_path / "job", tmp_path / "links/x", tmp_path / "r/../job"):
        hostile_release = replace(release, trees={**release.trees, "modules/x": place})
        with pytest.raises(InvalidInputError, match="is neither in the release nor in the store"):
            list(engine.compile(hostile_release, [request()]))
    (tmp_path / "links/x").unlink()
    (tmp_path / "links/x").mkdir()
    allowed = replace(release, trees={**release.trees, "modules/x": tmp_path / "links/x"})
    (result,) = engine.compile(allowed, [request()])
    assert result.failure is None


def test_without_isolation_localpuppet_refuses_to_compile(tmp_path: Path) -> None:
    release = write(tmp_path / "r", {"site.pp": ""})
    engine = make_engine(tmp_path / "e", trusted=False)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("prlimit", "setpriv", "mount", "umount", "findmnt", "true"):
        (programs / name).symlink_to(f"/usr/bin/{name}")
    (programs / "unshare").write_text("#!/bin/sh\necho 'unshare: not permitted' >&2\nexit 1\n")
    (programs / "unshare").chmod(0o755)
    refused = replace(
        engine,
        isolation=CodeIsolation(
            path=str(programs), memory=GIB, programs=64, otherwise="pass '--trusted'"
        ),
    )
    with pytest.raises(StateError, match=r"not permitted.*--trusted"):
        list(refused.compile(release, [request()]))


def test_a_path_without_the_programs_of_root_is_enough(tmp_path: Path) -> None:
    """An unprivileged user's PATH has no /usr/sbin, where pivot_root is."""
    CodeIsolation(
        path="/usr/bin:/bin", memory=GIB, programs=64, otherwise="pass '--trusted'"
    ).check(tmp_path)


def test_the_shared_process_reads_only_files_of_the_release(tmp_path: Path) -> None:
    """A compile may name any file to the process that all compiles share."""
    release = tmp_path / "r"
    release.mkdir()
    (tmp_path / "outside").write_text("1")
    (release / "inside").write_text("1")
    (release / "device").symlink_to("/dev/null")
    names = [f"{release}/{name}" for name in ("inside", "device", "../outside")]
    code = (
        "require 'puppet'; require 'json'; require ARGV[0]; include LocalpuppetPreview\n"
        "Reads.configure({ ARGV[1] => '' }, [], [])\n"
        "ARGV.drop(2).each { |path| Memo.learn('text', path) }\n"
        "puts JSON.generate(Memo.instance_variable_get(:@known).keys)"
    )
    ruby = shutil.which("ruby", path=PATH) or "ruby"
    argv = [ruby, "-e", code, str(shared_file("preview/memo.rb")), str(release), *names]
    done = subprocess.run(argv, check=True, capture_output=True, timeout=120)
    assert json.loads(done.stdout) == [["text", names[0]]]


# What a compile may tell the shared process that it lacked, as Ruby code.
BOUNDLESS = {
    "data that refers to itself": "LACKING << ['data', DATA]",
    "very many words": "def (text = Object.new).to_json(*) = '[' + '[],' * 20_000_000 + '0]'"
    "; Memo.define_singleton_method(:lacking) { text }",
}


def _peak() -> int:
    """Return the most memory that a program below this process had, in bytes."""
    parents, peaks = {}, {}
    for status in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError):
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
            parents[int(fields["Pid"])] = int(fields["PPid"])
            peaks[int(fields["Pid"])] = int(fields.get("VmHWM", "0 kB").split()[0]) * 1024
    below = [os.getpid()]
    for parent in below:
        below += [pid for pid, other in parents.items() if other == parent]
    return max(peaks[pid] for pid in below[1:])


@pytest.mark.parametrize("attack", BOUNDLESS)
def test_what_the_shared_process_computes_for_a_compile_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attack: str
) -> None:
    monkeypatch.setattr(engine_module, "SILENCE", 100)
    monkeypatch.setattr(ReleaseCompiler, "_die", lambda _: pytest.fail("the compiler died"))
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 8)}]" for n in range(1, 12)]
    constants = (
        f"DATA = '{tmp_path}/r/data/x.yaml'\nMemo = LocalpuppetPreview::Memo\n"
        "LACKING = Memo.instance_variable_get(:@lacking)\n"
    )
    files = {
        "data/x.yaml": "\n".join(lines),
        "modules/m/lib/puppet/functions/m/run.rb": constants
        + _function(f"{BOUNDLESS[attack]}; 'x'"),
        "site.pp": "node 'first' { notify { m::run(): } } node default { notify { 'fine': } }",
    }
    release = write(tmp_path / "r", files)
    limits = {**LIMITS, "memory": 512 * 1024**2}
    engine = make_engine(tmp_path / "e", trusted=False, limits=limits)
    results = engine.compile(release, [request("first"), request("last")])
    assert [next(results).failure, next(results).failure] == [None, None]
    assert _peak() < 2 * limits["memory"]
    assert [*results] == []


def test_the_directories_of_a_wrapper_are_shown(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    wrapper = make_wrapper(tmp_path)
    (tmp_path / "wrapped/secret").write_text("x")
    installation = probe(tmp_path, wrapper)
    code = "notify { [$clientversion, String(find_file('%s') =~ Undef)]: }"
    site = code % (tmp_path / "wrapped/secret")
    release = write(tmp_path / "r", {"site.pp": site})
    engine = replace(
        make_engine(tmp_path / "e", trusted=False),
        command=lambda: [str(wrapper), "--version"],
        ruby=lambda: map(Path, installation.places),
        version=lambda: OTHER_VERSION,
    )
    catalog = compile_all(engine, release, [request("a")])["a"].catalog
    assert catalog is not None
    notices = {one.title for one in catalog.resources if one.type == "Notify"}
    assert notices == {OTHER_VERSION, "true"}


def test_what_a_wrapper_lacks_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "variables").write_text("")
    wrapper = tmp_path / "puppet"
    wrapper.write_text(f'#!/bin/sh\n. {tmp_path}/variables\nexec /usr/bin/puppet "$@"\n')
    wrapper.chmod(0o755)
    release = write(tmp_path / "r", {"site.pp": ""})
    engine = make_engine(tmp_path / "e", trusted=False)
    blind = replace(engine, command=lambda: [str(wrapper), "--version"])
    with pytest.raises(StateError, match=r"did not start: .*/variables.*puppet\.command"):
        list(blind.compile(release, [request()]))


def test_a_puppet_that_is_not_that_of_runs_compiles_nothing(tmp_path: Path) -> None:
    release = write(tmp_path / "r", {"site.pp": ""})
    other = replace(make_engine(tmp_path / "e"), version=lambda: OTHER_VERSION)
    with pytest.raises(StateError, match=r"runs use another.*puppet\.command"):
        list(other.compile(release, [request()]))
