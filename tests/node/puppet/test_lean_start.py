"""The lean start of Ruby with the real Puppet: what processes that a module starts inherit."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.rigs.node import REPOSITORY, Node
from tests.rigs.puppet_wrapper import probe

STARTS = {
    "spawn": "spawn('/bin/sleep', '600', in: File::NULL, out: File::NULL, err: File::NULL)",
    "system": "system('/bin/sleep 600 </dev/null >/dev/null 2>&1 & echo $! >FILE')",
    "backquotes": "`/bin/sleep 600 </dev/null >/dev/null 2>&1 & echo $! >FILE`",
    "popen": "IO.popen(['/bin/sleep', '600'], in: File::NULL, err: File::NULL).pid",
}


@pytest.fixture
def daemon(node: Node) -> Iterator[Path]:
    """Yield the file with the process id of a daemon, and end the daemon."""
    file = node.root / "daemon"
    yield file
    if file.exists():
        os.kill(int(file.read_text()), signal.SIGKILL)


def module(node: Node, start: str, file: Path, then: str = "") -> None:
    node.app(f"app::daemon()\n{then}")
    node.write(
        "modules/app/trunk/app/lib/puppet/functions/app/daemon.rb",
        "Puppet::Functions.create_function(:'app::daemon') do\n"
        "  dispatch(:start) {}\n"
        "  def start\n"
        f"    pid = {start.replace('FILE', str(file))}\n"
        f"    File.write('{file}', pid.to_s) if pid.is_a?(Integer)\n"
        "    nil\n"
        "  end\n"
        "end\n",
    )


def open_files(pid: int) -> set[str]:
    """Return what the descriptors of a process lead to; it may close some meanwhile."""
    files = set[str]()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            files.add(str(descriptor.readlink()))
    return files


@pytest.mark.parametrize("start", STARTS)
def test_processes_of_a_module_do_not_inherit_the_lock(
    node: Node, daemon: Path, start: str
) -> None:
    module(node, STARTS[start], daemon)
    node.run("apply", code=0)
    assert not [name for name in open_files(int(daemon.read_text())) if "/var/lock" in name]


def test_a_daemon_does_not_keep_the_node_locked(node: Node, daemon: Path) -> None:
    module(node, STARTS["spawn"], daemon, node.gate_code())
    process = node.start("apply")
    record = node.wait_running()
    node.wait_until(daemon.exists)
    process.kill()
    node.finish(process)
    puppet = Path(f"/proc/{record['puppet']['pid']}")
    assert str(node.state / "lock") in open_files(record["puppet"]["pid"])
    assert node.run("apply").code == 75, "Puppet is alive and has the lock"
    node.open_gate()
    node.wait_until(lambda: not puppet.exists())
    assert open_files(int(daemon.read_text())), "the daemon is alive"
    node.run("status", code=1)
    node.app("notify { 'healed': }")
    node.run("apply", code=0)


def test_a_wrapper_that_closes_descriptors_does_not_stop_puppet(node: Node) -> None:
    wrapper = node.write(
        "bin/puppet",
        "#!/bin/bash\nfor fd in /proc/$$/fd/*; do fd=${fd##*/};"
        ' [ "$fd" -gt 2 ] && [ "$fd" -ne 255 ] && eval "exec $fd>&-"; done\n'
        'exec /usr/bin/puppet "$@"\n',
        0o755,
    )
    node.settings(puppet={"command": str(wrapper)})
    node.app("notify { 'hello': }")
    done = node.run("apply", code=0)
    assert "hello" in done.out


@pytest.mark.puppet
def test_one_lean_start_of_puppet_says_what_three_others_say(tmp_path: Path) -> None:
    conf = tmp_path / "puppet.conf"
    conf.write_text("[main]\ntags = a, b\nnoop = true\n[user]\nskip_tags = c\n[agent]\ntags = d\n")
    starts, found = tmp_path / "starts", []
    for unset in ("", "env -u RUBYOPT "):
        command = tmp_path / "puppet"
        command.write_text(f'#!/bin/sh\necho >>{starts}\nexec {unset}/usr/bin/puppet "$@"\n')
        command.chmod(0o755)
        found.append(probe(tmp_path, command, confdir=tmp_path))
        (tmp_path / "puppet.json").unlink()
    one, three = found
    assert (one.version, one.settings) == (three.version, three.settings)
    assert one.selection == {"tags": "a, b", "skip_tags": "c"}
    assert (one.noop, bool(one.ruby), bool(three.ruby)) == (True, True, False)
    assert len(starts.read_text()) == 1 + 3


def plain_and_lean(script: str, **variables: str) -> list[str]:
    """Return what a script prints in Ruby, and after the lean start."""
    start = f"-r{REPOSITORY}/localpuppet/base/share/lean_start.rb"
    return [
        subprocess.run(
            ["/usr/bin/ruby", *options, "-e", script],
            env={**os.environ, **variables},
            capture_output=True,
            check=True,
        ).stdout.decode()
        for options in ([], [start])
    ]


AUGEAS = """
require 'facter'
require 'augeas'
Augeas.singleton_class.prepend(Module.new do
  def open3(root, path, flags)
    puts "flags #{flags}"
    super
  end
end)
puts "version #{Facter.value('augeas')['version']}"
"""


@pytest.mark.puppet
def test_facter_reads_the_version_of_augeas_without_loading_all_lenses() -> None:
    plain, lean = (output.splitlines() for output in plain_and_lean(AUGEAS))
    assert plain[0] == "flags 0"
    assert lean[0] == "flags 64", "NO_MODL_AUTOLOAD"
    assert lean[1] == plain[1]
    assert lean[1].startswith("version 1.")


COMMANDS = """
require 'facter'
require 'json'
started = []
Facter::Core::Execution::Popen3.singleton_class.prepend(Module.new do
  define_method(:popen3e) do |env, command, **options, &block|
    started << command
    super(env, command, **options, &block)
  end
end)
facts = Facter.to_hash.slice('os', 'networking', 'selinux', 'lsbdistid', 'kernel', 'virtual')
first = started.dup
Facter.flush
Facter.value('os.selinux')
own = 2.times.map { Facter::Core::Execution.execute('cat /proc/self/mounts') }
puts JSON.generate(first:, later: started.drop(first.size), facts:, own: own.map(&:empty?))
"""


@pytest.mark.puppet
def test_a_resolver_of_facter_starts_each_command_once() -> None:
    plain, lean = (json.loads(output.splitlines()[-1]) for output in plain_and_lean(COMMANDS))
    mounts = "cat /proc/self/mounts"
    assert plain["first"].count(mounts) > 1, "without the lean start"
    assert lean["first"].count(mounts) == 1
    assert len(lean["first"]) == len(set(lean["first"]))
    assert set(lean["first"]) == set(plain["first"])
    assert lean["facts"] == plain["facts"]
    again = ["a flush", "a custom fact", "the same once more"]
    assert sum(mounts in command for command in lean["later"]) == len(again)
    assert lean["own"] == [False, False]


OPTIONS = """
require 'optparse'
require 'puppet/version'
parser = OptionParser.new
20.times { |number| parser.on("--[no-]option#{number} X") { nil } }
parser.on('-a', '--first') { nil }
parser.on('--second', '-a') { nil }
parser.on('--option3 Y') { nil }
parser.on('--no-option3') { nil }
parser.on('--first') { nil }
puts parser.help, parser.top.short.transform_values(&:long), parser.top.long.transform_values(&:arg)
"""


@pytest.mark.puppet
def test_options_that_take_names_of_others_are_as_in_plain_ruby() -> None:
    plain, lean = plain_and_lean(OPTIONS)
    assert lean == plain
    assert "--option3 Y" in lean
    assert "[no-]option3" not in lean, "no name leads to it any more"


GEMS = """
directory = ENV['GEM_HOME'] = File.join(ENV.fetch('PLACE'), Process.pid.to_s)
Dir.mkdir(directory)
require 'puppet'
require 'puppet/util/feature'
reads = 0
counted = Module.new { define_method(:reset) { (reads += 1) && super() } }
Gem::Specification.singleton_class.prepend(counted)
features = Puppet::Util::Feature.new('puppet/feature')
features.add(:fresh, libs: 'localpuppet_fresh')
puts 3.times.map { features.fresh? }.inspect
before = reads
Dir.mkdir(File.join(directory, 'specifications'))
Dir.mkdir(File.join(directory, 'gems'))
Dir.mkdir(File.join(directory, 'gems', 'fresh-1'))
Dir.mkdir(File.join(directory, 'gems', 'fresh-1', 'lib'))
File.write(File.join(directory, 'gems', 'fresh-1', 'lib', 'localpuppet_fresh.rb'), '')
File.write(File.join(directory, 'specifications', 'fresh-1.gemspec'), <<~SPEC)
  # -*- encoding: utf-8 -*-
  # stub: fresh 1 ruby lib
  Gem::Specification.new { |s| s.name, s.version, s.require_paths = 'fresh', '1', ['lib'] }
SPEC
puts features.fresh?, before
"""


@pytest.mark.puppet
def test_puppet_finds_a_library_of_a_gem_that_is_installed_during_a_run(tmp_path: Path) -> None:
    plain, lean = (output.splitlines() for output in plain_and_lean(GEMS, PLACE=str(tmp_path)))
    assert plain[:2] == lean[:2] == ["[false, false, false]", "true"]
    assert int(lean[2]) <= 1 < int(plain[2]), "descriptions of gems are read for each question"
