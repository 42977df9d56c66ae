"""Compiled Ruby that localpuppet keeps between runs: Ruby loads it only for unchanged files."""

import fcntl
import mmap
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from localpuppet.base.machine.own_program import shared_file
from localpuppet.node.puppet.launching import sealed_pack
from tests.rigs.long import with_sample
from tests.rigs.node import PATIENCE, Node, completed

pytestmark = pytest.mark.puppet

# Loads each file of a library from each named pack, and prints the results.
DRIVER = """
require ENV['COMPILED_RUBY']
$LOAD_PATH.unshift(ENV['LIBRARY'])
$taken = 0
RubyVM::InstructionSequence.singleton_class.prepend(Module.new do
  def load_from_binary(bytes)
    $taken += 1
    super
  end
end)
ARGV.each do |directory|
  LocalpuppetCompiledRuby.start(directory)
  $taken = 0
  values = Dir.glob("#{ENV['LIBRARY']}/*.rb").sort.map do |path|
    $value = nil
    load path
    $value
  end
  puts [$taken, *values].join(' ')
end
"""


class Library:
    def __init__(self, top: Path) -> None:
        self.top = top
        self.files = top / "library"
        self.files.mkdir()
        self.pack = top / "cache" / "pack"
        for number in range(3):
            (self.files / f"f{number}.rb").write_text(f"$value = {number}\n")

    def load(self, *packs: Path | int, flags: tuple[str, ...] = ()) -> list[str]:
        """Return a line for each directory or descriptor: files from its pack, all values."""
        done = subprocess.run(
            ["ruby", *flags, "-e", DRIVER, *map(str, packs or (self.pack.parent,))],
            cwd=self.top,
            pass_fds=[pack for pack in packs if isinstance(pack, int)],
            env={
                **os.environ,
                "COMPILED_RUBY": str(shared_file("compiled_ruby.rb")),
                "LIBRARY": str(self.files),
            },
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=True,
        )
        assert done.stderr == ""
        return done.stdout.splitlines()

    def compile(self) -> None:
        subprocess.run(
            ["ruby", shared_file("compile_ruby.rb"), self.pack.parent], check=True, timeout=PATIENCE
        )

    def warm(self) -> None:
        """Make the pack, as a run and its follow-up process do."""
        assert self.load() == ["0 0 1 2"]
        self.compile()
        assert self.load() == ["3 0 1 2"]


@pytest.fixture
def library(tmp_path: Path) -> Library:
    made = Library(tmp_path)
    made.warm()
    return made


def test_a_changed_file_is_read_from_its_source(library: Library) -> None:
    file = library.files / "f1.rb"
    before = file.stat()
    file.write_text("$value = 9\n")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert library.load() == ["2 0 9 2"], "same size and time, other content"
    shutil.copy2(library.files / "f0.rb", library.files / "new")
    (library.files / "new").rename(library.files / "f0.rb")
    assert library.load() == ["1 0 9 2"], "same content, other inode"
    assert (library.pack.parent / "wanted").read_text().count("\n") == 2
    library.compile()
    assert library.load() == ["3 0 9 2"]
    assert not (library.pack.parent / "wanted").exists()


def test_files_that_cannot_be_compiled_are_not_requested_again(library: Library) -> None:
    (library.files / "f0.rb").write_text("$value = 7 # " + "x" * 3 * 1024 * 1024 + "\n")
    (library.files / "f1.rb").unlink()
    assert library.load() == ["1 7 2"]
    library.compile()
    assert library.load() == ["1 7 2"]
    assert not (library.pack.parent / "wanted").exists()


@pytest.mark.parametrize("flags", [("-w",), ("--enable=frozen-string-literal",)])
def test_other_options_of_ruby_use_no_pack(library: Library, flags: tuple[str, ...]) -> None:
    assert library.load(flags=flags) == ["0 0 1 2"]


def _another_key(pack: Path) -> None:
    head, _, rest = pack.read_bytes().partition(b"\n")
    pack.write_bytes(head[:-1] + (b"0" if head[-1:] != b"0" else b"1") + b"\n" + rest)


def _in_place_of(pack: Path, make: Callable[[Path], object]) -> None:
    pack.rename(pack.with_name("elsewhere"))
    make(pack)


FOREIGN: dict[str, Callable[[Path], object]] = {
    "of another user": lambda pack: os.chown(pack, 1, 1),
    "readable for others": lambda pack: pack.chmod(0o644),
    "a link": lambda pack: _in_place_of(pack, lambda at: at.symlink_to("elsewhere")),
    "a pipe": lambda pack: _in_place_of(pack, os.mkfifo),
    "a directory": lambda pack: _in_place_of(pack, Path.mkdir),
    "empty": lambda pack: pack.write_bytes(b""),
    "of another Ruby": _another_key,
}


@pytest.mark.parametrize("made", FOREIGN)
def test_a_foreign_pack_is_never_loaded(library: Library, made: str) -> None:
    FOREIGN[made](library.pack)
    assert library.load() == ["0 0 1 2"]
    if (copy := sealed_pack(library.pack.parent, [library.files])) is not None:
        with copy:
            assert made in ("a link", "of another Ruby")
            assert library.load(copy.fileno()) == ["3 0 1 2" if made == "a link" else "0 0 1 2"]


@pytest.mark.parametrize("damage", [b"", b"x", b"x\n1 2\n"])
def test_a_damaged_pack_is_not_copied(library: Library, damage: bytes) -> None:
    library.pack.write_bytes(damage or library.pack.read_bytes().replace(b"f0.rb", b"f9.rb"))
    assert sealed_pack(library.pack.parent, [library.files]) is None


@pytest.fixture
def copy(library: Library) -> Iterator[IO[bytes]]:
    """The pack for a process that sees nothing but the library."""
    made = sealed_pack(library.pack.parent, [library.files])
    assert made is not None
    with made:
        yield made


def test_a_process_that_inherits_a_pack_cannot_change_it(library: Library, copy: IO[bytes]) -> None:
    fd, good = copy.fileno(), copy.read()
    attacks: dict[str, Callable[[], object]] = {
        "write": lambda: os.pwrite(fd, b"x", 0),
        "write through proc": lambda: os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_TRUNC),
        "cut": lambda: os.ftruncate(fd, 1),
        "extend": lambda: os.ftruncate(fd, 1 << 30),
        "map": lambda: mmap.mmap(fd, 0),
        "seal again": lambda: fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE),
    }
    for attack in attacks.values():
        with pytest.raises(PermissionError):
            attack()
    copy.seek(0)
    assert copy.read() == good
    copy.seek(0)
    assert library.load(fd) == ["3 0 1 2"]


def test_a_copy_has_no_file_that_its_process_does_not_see(library: Library) -> None:
    (library.files / "f1.rb").rename(library.top / "hidden.rb")
    (library.files / "f1.rb").symlink_to("../hidden.rb")
    (library.files / "f0.rb").write_text("$value = 'CANARY'\n")
    library.load()
    library.compile()
    assert library.load() == ["3 CANARY 1 2"]
    for places, taken in (([library.files], 2), ([library.files / "f", library.top / "lib"], 0)):
        copy = sealed_pack(library.pack.parent, places)
        assert copy is not None
        with copy:
            assert (b"CANARY" in copy.read()) is (taken > 0)
            copy.seek(0)
            assert library.load(copy.fileno()) == [f"{taken} CANARY 1 2"]
    assert {path.name for path in library.top.iterdir()} == {"cache", "hidden.rb", "library"}


def test_a_file_from_a_damaged_pack_is_correct_or_read_from_its_source(library: Library) -> None:
    good = library.pack.read_bytes()
    dice = random.Random(17)  # noqa: S311 # the same damage each time
    directories = []
    for number in range(600):
        damaged = bytearray(good)
        at = dice.randrange(len(good))
        kind = number % 4
        if kind == 0:
            damaged[at] ^= 1 << dice.randrange(8)
        elif kind == 1:
            del damaged[at:]
        elif kind == 2:
            damaged[at:at] = dice.randbytes(dice.randrange(1, 40))
        else:
            other = dice.randrange(len(good))
            damaged[at : at + 30] = good[other : other + 30]
        directory = library.top / "damaged" / str(number)
        directory.mkdir(parents=True, mode=0o700)
        (directory / "pack").touch(0o600)
        (directory / "pack").write_bytes(damaged)
        directories.append(directory)
    found = library.load(*directories)
    assert {line.partition(" ")[2] for line in found} == {"0 1 2"}
    taken = [int(line.partition(" ")[0]) for line in found]
    assert len(taken) == 600
    assert min(taken) == 0
    assert 2 in taken, "damage to one file does not affect the others"


def test_files_of_a_killed_process_are_removed(library: Library) -> None:
    cache = library.pack.parent
    for name in ("pack.123", "wanted.123"):
        (cache / name).write_text("half")
    (library.files / "f0.rb").write_text("$value = 3\n")
    library.load()
    library.compile()
    assert sorted(path.name for path in cache.iterdir()) == ["lock", "pack"]
    assert library.load() == ["3 3 1 2"]


def test_without_a_cache_directory_all_files_are_read_from_their_sources(tmp_path: Path) -> None:
    library = Library(tmp_path)
    (tmp_path / "cache").write_text("a file in the way")
    assert library.load() == ["0 0 1 2"]


LOADING = """
require 'puppet'
require 'puppet/application/apply'
Puppet.initialize_settings(ARGV)
%i[file exec user package service].each { |name| Puppet::Type.type(name).defaultprovider }
$LOADED_FEATURES.each { |file| puts "F #{file}" }
"""


def features(node: Node, *start: Path) -> list[str]:
    """Return the files that Ruby has loaded for a run with some resources, in order."""
    options = [f"-r{file}" for file in start]
    places = (f"--confdir={node.root}", f"--vardir={node.root}/v")
    done = completed("ruby", *options, "-e", LOADING, "--", *places)
    return [line for line in done.out.splitlines() if line.startswith("F ")]


def test_ruby_loads_the_same_files_in_the_same_order_with_the_feature_index(node: Node) -> None:
    index = shared_file("feature_index.rb")
    assert [name for name in features(node, index) if name != f"F {index}"] == features(node)


@pytest.fixture
def unprepared(node: Node) -> Node:
    shutil.rmtree(node.compiled)
    return node


TROUBLE = {
    "good": "notify { 'hello': }\nfile { '/nonexistent/x': ensure => absent }",
    "does not compile": "notify { 'hello': \n",
    "fails": "exec { '/bin/false': }\nnotify { 'after': require => Exec['/bin/false'] }",
    "raises": "$x = 1 / 0",
}


@pytest.mark.parametrize("code", with_sample(TROUBLE, "fails"))
def test_compiled_ruby_changes_neither_output_nor_result(unprepared: Node, code: str) -> None:
    node = unprepared
    node.app(TROUBLE[code])

    def apply() -> tuple[int, list[str], str]:
        done = node.run("apply", "--", "--trace")
        lines = [line for line in done.out.splitlines() if not line.startswith("#")]
        # Facter resolves facts in the order in which Ruby lists constants.
        untimed = sorted(line for line in lines if " seconds" not in line)
        return done.code, untimed, node.status()["state"]

    first = apply()
    node.wait_until(node.has_compiled)
    made = (node.compiled / "pack").stat()
    assert apply() == first
    assert (made.st_mode & 0o777, node.compiled.stat().st_mode & 0o777) == (0o600, 0o700)
    assert node.has_compiled(), "no file is missing"
    assert (node.compiled / "pack").stat().st_ino == made.st_ino


def test_modules_see_no_variable_and_their_code_is_not_in_the_pack(unprepared: Node) -> None:
    node = unprepared
    node.app("notice(app::seen())")
    function = node.write(
        "modules/app/trunk/app/lib/puppet/functions/app/seen.rb",
        "Puppet::Functions.create_function(:'app::seen') do\n"
        "  def seen\n"
        "    require 'puppet_x/app/more'\n"
        "    ENV.keys.grep(/LOCALPUPPET_(COMPILED|UNSET)/).join\n"
        "  end\n"
        "end\n",
    )
    node.write("modules/app/trunk/app/lib/puppet_x/app/more.rb", "APP_MORE = 1\n")
    done = node.run("apply", code=0)
    node.wait_until(node.has_compiled)
    assert "Class[App]): \n" in done.out + "\n", "the environment is that of the caller"
    assert str(function.parent.parent.parent).encode() not in (node.compiled / "pack").read_bytes()


@pytest.mark.parametrize("command", ["check --parse", "lookup app::msg"])
def test_commands_that_compile_use_the_pack_and_do_not_change_it(node: Node, command: str) -> None:
    node.app("notify { 'hello': }")
    before = (node.compiled / "pack").stat().st_ino
    trace = node.root / "trace"
    node.inside = ["strace", "-f", "-qq", "-o", str(trace), "-e", "trace=pread64"]
    done = node.run(*command.split())
    assert done.code == ("lookup" in command), done.err
    assert trace.read_text().count("pread64(") > 300, "Ruby reads each file from the pack"
    assert {path.name for path in node.compiled.iterdir()} == {"lock", "pack"}
    assert (node.compiled / "pack").stat().st_ino == before


def test_a_setting_disables_compiled_ruby(unprepared: Node) -> None:
    unprepared.settings(puppet={"compiled_ruby": False})
    unprepared.app("notify { 'hello': }")
    unprepared.run("apply", code=0)
    assert not unprepared.compiled.exists()


def test_no_pack_is_written_to_a_nearly_full_disk(unprepared: Node) -> None:
    small = unprepared.root / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100m,mode=700", "x", small], check=True)
    try:
        unprepared.settings(state="small")
        unprepared.app("notify { 'hello': }")
        unprepared.run("apply", code=0)
        assert [path.name for path in (small / "cache" / "ruby").iterdir()] == ["wanted"]
    finally:
        subprocess.run(["umount", "-l", small], check=True)


def test_a_killed_puppet_leaves_no_pack(unprepared: Node) -> None:
    node = unprepared
    node.app("exec { '/bin/sleep 60': }")
    process = node.start("apply")
    record = node.wait_running()
    os.kill(record["puppet"]["pid"], signal.SIGKILL)
    assert node.finish(process).code != 0
    assert not node.compiled.exists()
