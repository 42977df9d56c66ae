"""The installed Puppet: its path, version and settings, asked once per version and configuration.

`puppet config print` takes a second or two, too long for each run. The answer is kept under a key
that changes with Puppet or its configuration.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from localpuppet import __version__
from localpuppet.base.errors import PuppetMissingError, StateError
from localpuppet.base.formats.converter import JsonRecord
from localpuppet.base.formats.json_file import read_json
from localpuppet.base.formats.strict_json import loads
from localpuppet.base.formats.text import last_words
from localpuppet.base.machine.files import make_private, write_json
from localpuppet.base.value import Value

# What a probe asks Puppet for.
ASKED = (
    "agent_catalog_run_lockfile",
    "agent_disabled_lockfile",
    "certname",
    "codedir",
    "config",
    "hiera_config",
    "libdir",
)
# What 'puppet apply' reads in the sections [user] and [main], and what it changes.
OF_RUNS = {
    "noop": "runs change nothing",
    "skip_tags": "runs apply a part of the catalog, and no rollback returns to them",
    "storeconfigs": "exported resources go to Puppet's own backend, not over the bus",
    "tags": "runs apply a part of the catalog, and no rollback returns to them",
}
# Where Debian and the vendor of Puppet install gems: `VERSION/specifications/NAME-VERSION.gemspec`.
GEM_DIRECTORIES = (
    *("/var/lib/gems", "/usr/share/rubygems-integration", "/usr/lib/*/rubygems-integration"),
    *("/usr/local/lib/ruby/gems", "/opt/puppetlabs/puppet/lib/ruby/gems"),
)
_RUBY = b"localpuppet: ruby "
_LEAN_START = (b"localpuppet: lean start", _RUBY)
# Start-up tuning: see docs/contribute/benchmarks/runs.md for what each is worth.
LEAN_FLAGS = (
    ("--disable-did_you_mean", "--disable-error_highlight"),
    ("--disable-did_you_mean",),
)


class Installation(JsonRecord):
    """An installed Puppet.

    Attributes:
        lean: Ruby flags that its interpreter accepts; empty if it ignores RUBYOPT.
        load_path: Directories from which it loads Puppet, without the interpreter's own.
        places: Directories and files of both.
    """

    command: str
    version: str
    settings: Mapping[str, str]
    lean: tuple[str, ...]
    ruby: str = ""
    load_path: tuple[str, ...] = ()
    places: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "Installation":
        """Return the installation.

        Raises:
            StateError, ValueError: The value is not an installation.
        """
        installation = super().from_dict(raw)
        if not {*ASKED, *OF_RUNS} <= set(installation.settings):
            raise ValueError("an older probe")
        return installation

    def interpreter(self, path: str) -> Path | None:
        """Return the interpreter; `find_ruby` searches for one that ignores RUBYOPT."""
        return Path(self.ruby) if self.ruby else find_ruby(Path(self.command), path)

    @property
    def selection(self) -> dict[str, str]:
        """The settings of puppet.conf that choose a part of the catalog."""
        return {name: self.settings.get(name, "") for name in ("tags", "skip_tags")}

    @property
    def noop(self) -> bool:
        """Whether puppet.conf lets runs change nothing."""
        return self.settings.get("noop") == "true"

    def warnings(self, *, bus: bool) -> list[str]:
        """Return a line for each setting of puppet.conf that changes what a run means.

        Args:
            bus: Whether localpuppet exchanges exported resources, whatever puppet.conf says.
        """
        return [
            f"puppet.conf: {name} is set: {effect} (remove it)"
            for name, effect in OF_RUNS.items()
            if self.settings.get(name, "") not in ("", "false")
            and not (bus and name == "storeconfigs")
        ]

    @property
    def disable_file(self) -> Path:
        """Puppet's own disable file."""
        return Path(self.settings["agent_disabled_lockfile"])

    @property
    def hiera_files(self) -> list[Path]:
        """The paths of Puppet's global Hiera configuration; existing files decide which is used."""
        named = [Path(self.settings["hiera_config"]), Path(self.settings["codedir"], "hiera.yaml")]
        return list(dict.fromkeys(named))

    @property
    def run_lock(self) -> Path:
        """Puppet's own run lock."""
        return Path(self.settings["agent_catalog_run_lockfile"])


def json_problem(installation: Installation, env: Mapping[str, str]) -> str | None:
    """Return a line if this Puppet cannot read the metadata of modules with Ruby's json 3.

    OpenVox 9.0.0-rc1 is one (Debian 14). Only where json 3 is, Puppet is asked: a second.
    """
    import subprocess  # for `check` alone: every start reads this file

    # A directory of the list may have been empty when Puppet was asked.
    named = [place for place in env.get("GEM_PATH", "").split(":") if place]
    gems = [*gem_names(GEM_DIRECTORIES), *gem_names((*named, *installation.places), version="")]
    json = next((name for name in gems if fnmatch(name, "json-[3-9]*")), "")
    ruby = installation.interpreter(env.get("PATH", ""))
    if not json or ruby is None:
        return None
    load = [word for path in installation.load_path for word in ("-I", path)]
    script = "require 'puppet'; require 'puppet/util/json'; Puppet::Util::Json.load('{}')"
    try:
        done = subprocess.run(
            [ruby, *load, "-e", script],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None  # a run says what is wrong with this Ruby
    if done.returncode == 0 or b"ArgumentError" not in done.stderr:
        return None
    return (
        f"Puppet {installation.version} cannot read the metadata.json of modules with Ruby's"
        f" {json}: runs fail (install a newer openvox-agent, or remove json 3: 'apt remove"
        " ruby-json' leaves the one that Ruby brings)"
    )


def probe_environment(
    base: Mapping[str, str], *, lean: Sequence[str], lean_start: Path
) -> dict[str, str]:
    """Return an environment in which Ruby confirms `lean` on standard error."""
    from localpuppet.node.puppet.command_line import LeanStart, environment

    start = LeanStart(flags=lean, file=lean_start)
    return environment(
        base, lean=start, more={"LOCALPUPPET_PROBE": " ".join(OF_RUNS)} if lean else {}
    )


def probe_took(stderr: bytes) -> bool:
    """Return whether a probe's standard error shows that the interpreter took the lean start."""
    return b"localpuppet: lean start" in stderr and b"unknown argument" not in stderr


def without_probed_ruby(stderr: bytes) -> bytes:
    """Return a probe's standard error without the lines of the lean start."""
    return b"\n".join(line for line in stderr.splitlines() if not line.startswith(_LEAN_START))


def probed(stderr: bytes) -> dict[str, Any]:
    """Return what the lean start printed: values of `Installation`; empty if nothing.

    Of its settings, those of `OF_RUNS`. They and the version may be missing.
    """
    lines = [line for line in stderr.splitlines() if line.startswith(_RUBY)]
    try:
        raw = loads(lines[-1].removeprefix(_RUBY))
        found = {
            "ruby": raw["ruby"],
            **{name: tuple(raw[name]) for name in ("load_path", "places")},
        }
        if "version" in raw:
            found |= {"version": raw["version"], "settings": dict(raw["user"])}
    except (IndexError, KeyError, TypeError, ValueError):
        return {}
    return found


def parse_settings(stdout: bytes) -> dict[str, str]:
    """Return the output of `puppet config print NAME…`: `name = value` lines."""
    lines = (line.partition(" = ") for line in stdout.decode("utf-8", "replace").splitlines())
    return {name: value for name, separator, value in lines if separator}


def find_command(setting: Path | None, path: str) -> Path | None:
    """Return Puppet's command: the setting, the vendor's path, then PATH."""
    if setting is not None:
        return setting if os.access(setting, os.X_OK) else None
    candidates = [Path("/opt/puppetlabs/bin/puppet")]
    candidates += [Path(directory) / "puppet" for directory in path.split(":") if directory]
    return next((candidate for candidate in candidates if os.access(candidate, os.X_OK)), None)


def find_ruby(command: Path, path: str) -> Path | None:
    """Return the interpreter of Puppet's command, which has Puppet's library.

    It is beside the command (the vendor's packages, distributions) or in its first line (gems);
    PATH is the last resort.
    """
    real = command.resolve()
    candidates = [real.parent / "ruby"]
    try:
        with real.open("rb") as file:
            words = file.readline(256).decode("utf-8", "replace").removeprefix("#!").split()
    except OSError:
        words = []
    if words and words[0].startswith("/") and "ruby" in Path(words[0]).name:
        candidates.append(Path(words[0]))
    candidates += [Path(directory) / "ruby" for directory in path.split(":") if directory]
    return next((candidate for candidate in candidates if os.access(candidate, os.X_OK)), None)


def ruby_state(ruby: Path, gem_directories: Sequence[str] = GEM_DIRECTORIES) -> str:
    """Return a text that differs if the interpreter or an installed gem has another version.

    Raises:
        OSError: It is gone.
    """
    status = ruby.stat()
    gems = sorted(gem_names(gem_directories))
    return " ".join((ruby.resolve().name, str(status.st_size), str(status.st_mtime_ns), *gems))


def gem_names(directories: Iterable[str], version: str = "*/") -> Iterator[str]:
    """Yield `NAME-VERSION` of each gem in directories or patterns of directories."""
    for directory in directories:
        pattern = f"{directory.lstrip('/')}/{version}specifications/*.gemspec"
        yield from (file.stem for file in Path("/").glob(pattern))


TIMEOUT = 120


class PuppetProbe(Value):
    """Finds the installed Puppet, and remembers its settings.

    Without a `command` of the site, it looks in the usual places. `env` is that of `puppet config
    print`.
    """

    memory: Path
    command: Path | None
    directories: Mapping[str, Path]
    lean_start: Path
    env: Mapping[str, str]

    def known(self) -> Installation | None:
        """Return the remembered Puppet; `None` if it changed or is absent."""
        command = find_command(self.command, self.env.get("PATH", ""))
        if command is None:
            return None
        try:
            kept = read_json(self.memory)
            installation = Installation.from_dict(kept["installation"])
            if kept["key"] == self._key(command, installation):
                return installation
        except (FileNotFoundError, StateError, KeyError, TypeError, ValueError):
            pass  # nothing kept, or by another version: ask again
        return None

    def installation(self) -> Installation:
        """Return the installed Puppet; ask it if necessary."""
        known = self.known()
        if known is not None:
            return known
        command = find_command(self.command, self.env.get("PATH", ""))
        if command is None:
            raise PuppetMissingError(
                "cannot find OpenVox or Puppet",
                where=str(self.command or "/opt/puppetlabs/bin and PATH"),
                hint="install openvox-agent or puppet-agent, or set puppet.command",
            )
        installation = self._ask(command)
        make_private(self.memory.parent)
        key = self._key(command, installation)
        write_json(self.memory, {"key": key, "installation": installation.to_dict()})
        return installation

    def _key(self, command: Path, installation: Installation) -> list[Any]:
        status, file = command.stat(), Path(installation.settings["config"])
        directories = sorted((name, str(path)) for name, path in self.directories.items())
        return [
            __version__,
            os.path.realpath(command),
            status.st_mtime_ns,
            status.st_size,
            str(file),
            file.stat().st_mtime_ns if file.exists() else 0,
            [list(pair) for pair in directories],
            str(self.lean_start),
        ]

    def _ask(self, command: Path) -> Installation:
        own = [word for name, path in self.directories.items() for word in (f"--{name}", str(path))]
        for lean in (*LEAN_FLAGS, ()):
            env = probe_environment(self.env, lean=lean, lean_start=self.lean_start)
            stdout, stderr = self._run(
                command, ["config", "print", "--section", "agent", *ASKED, *own], env
            )
            if b"unknown argument" not in stderr:
                break
        if not probe_took(stderr):
            lean = ()  # a wrapper withholds RUBYOPT, say
        found = probed(stderr)
        if "version" not in found:
            version, _ = self._run(command, ["--version"], self.env)
            of_runs, _ = self._run(
                command, ["config", "print", "--section", "user", *OF_RUNS, *own], self.env
            )
            found["version"] = version.decode("utf-8", "replace").strip()
            found["settings"] = parse_settings(of_runs)
        settings = {**parse_settings(stdout), **found.pop("settings")}
        missing = [name for name in (*ASKED, *OF_RUNS) if name not in settings]
        if missing:
            raise PuppetMissingError(
                f"'puppet config print' did not print {', '.join(missing)}", where=str(command)
            )
        return Installation(
            command=str(command),
            settings=settings,
            lean=lean,
            **found,
        )

    def _run(
        self, command: Path, arguments: list[str], env: Mapping[str, str]
    ) -> tuple[bytes, bytes]:
        import sh  # 78 ms to import: only when Puppet is new

        try:
            done = sh.Command(str(command))(
                *arguments, _env=dict(env), _timeout=TIMEOUT, _return_cmd=True, _tty_out=False
            )
        except sh.TimeoutException as error:
            raise PuppetMissingError(f"no answer within {TIMEOUT} s", where=str(command)) from error
        except (sh.ForkException, sh.CommandNotFound, OSError) as error:
            raise PuppetMissingError("cannot be executed", where=str(command)) from error
        except sh.ErrorReturnCode as error:
            error_text = error.stderr or str(error).encode()
            text = last_words(without_probed_ruby(error_text), most=200)
            hint = f"check puppet.conf with '{command} {' '.join(arguments[:2])}'"
            if "must be lower case" in text:
                hint = "write 'certname' in puppet.conf in lower case"
            raise PuppetMissingError(
                f"does not work: {text}", where=str(command), hint=hint
            ) from error
        return bytes(done.stdout), bytes(done.stderr)
