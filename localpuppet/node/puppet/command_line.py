"""Puppet's command line, its environment variables and its texts. Nothing is executed here.

docs/reference/puppet-command.md has the facts about Puppet behind these choices,
docs/contribute/benchmarks/runs.md the effect of each part.
"""

import hashlib
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.text import one_line
from localpuppet.base.value import Value

# Options that would make the record untrue, or replace the ENC or the modulepath.
OURS = frozenset(
    (
        "apply",
        "catalog",
        "catalog_cache_terminus",
        "catalog_terminus",
        "agent_catalog_run_lockfile",
        "agent_disabled_lockfile",
        "certname",
        "classfile",
        "client_datadir",
        "code",
        "color",
        "config",
        "confdir",
        "detailed_exitcodes",
        "environment",
        "environmentpath",
        "execute",
        "external_nodes",
        "help",
        "lastrunfile",
        "lastrunreport",
        "loadclasses",
        "logdest",
        "modulepath",
        "node_name",
        "node_name_fact",
        "node_name_value",
        "node_terminus",
        "noop",
        "publicdir",
        "report",
        "reports",
        "resourcefile",
        "route_file",
        "splay",
        "statedir",
        "storeconfigs",
        "storeconfigs_backend",
        "use_cached_catalog",
        "vardir",
        "version",
        "write_catalog_summary",
    )
)
# The termini are in modules/localpuppet.
STORECONFIGS = ("--storeconfigs", "--storeconfigs_backend", "localpuppet")
# puppet.conf must not let a run sleep, nor give it another catalog than that of the release.
_FIXED = (
    *("--no-splay", "--no-use_cached_catalog", "--catalog_terminus", "compiler"),
    *("--catalog_cache_terminus", "", "--code", ""),
)
_ERROR = re.compile(r"Error: (?!Facter\b|Scope\()")
# Below a run's public directory: where Puppet keeps the facts of the run, as routes.yaml says. A
# directory of the run's own, or Puppet would take the facts of the run before from there.
CLIENT_DATA = "client_data"
# There, too: the classes in the catalog, which an apply does not write down by itself.
CLASSES = "classes.txt"
# Read by `enc.sh` and by the facts in `modules/localpuppet`.
NODE_DOCUMENT = "LOCALPUPPET_NODE_DOCUMENT"
INSTANCE_FACTS = "LOCALPUPPET_INSTANCE_FACTS"
# Where the Ruby in `modules/localpuppet` finds the settings, and by them the bus.
ROOT = "LOCALPUPPET_ROOT"
# How that Ruby gets sealed values: a descriptor, which the lean start takes away, or a word.
SEALED = "LOCALPUPPET_SEALED"
# Nothing is opened: each value is a text with its number.
PLACEHOLDERS = "placeholders"
# Where Ruby finds compiled Ruby: in a directory, or in a pack that it inherits as a descriptor.
COMPILED = "LOCALPUPPET_COMPILED"
_SHORT = re.compile("-[dtv]+")
_STORED_TREE = r"/(?:releases|objects)/[0-9a-f]{32,}/"
_PLACE = re.compile(rf"\(file: [^()\s]*{_STORED_TREE}")
_TREE = re.compile(rf".*{_STORED_TREE}")


class Compilation(Value):
    """The sources of a catalog, for a run, `lookup` and `release diff`.

    Attributes:
        own_directories: `--confdir`, `--vardir` if the site sets them.
        certname: The node's name if the site sets it; empty for Puppet's own setting.
        environments: The directory of environments, which Puppet requires. The site's own is not
            used, because it would be one more input. See `launching.make_environment`.
        environment_code: Directories of the release from which Puppet loads functions and data
            types as if from the environment.
        site_manifest: The `.pp` file, or a directory of them. The option for it depends on Puppet's
            subcommand.
        immutable: Whether the release's code does not change, so that it may be read in advance.
    """

    own_directories: Mapping[str, Path]
    certname: str
    enc_script: Path
    environments: Path
    environment: str
    environment_code: Sequence[Path]
    modulepath: Sequence[Path]
    hiera_config: Path | None
    site_manifest: Path
    immutable: bool = False

    @property
    def key(self) -> str:
        """Return a digest of the names of its code's directories; empty if the code may change."""
        names = [self.environments / self.environment, *self.modulepath, *self.environment_code]
        text = "\0".join(map(str, names))
        return hashlib.sha256(text.encode()).hexdigest() if self.immutable else ""

    @property
    def options(self) -> list[str]:
        """Puppet's options, except the site manifest."""
        options = []
        for name, directory in self.own_directories.items():
            options += [f"--{name}", str(directory)]
        if self.certname:
            options += ["--certname", self.certname]
        options += ["--node_terminus", "exec", "--external_nodes", str(self.enc_script)]
        options += ["--environmentpath", str(self.environments)]
        options += ["--environment", self.environment]
        options += ["--modulepath", ":".join(map(str, self.modulepath))]
        if self.hiera_config:
            options += ["--hiera_config", str(self.hiera_config)]
        return options


class ApplyCommand(Value):
    """One `puppet apply`, in the operator's terms.

    Attributes:
        node_document: The path of the node document, passed in the environment if it is not the ENC
            script's default.
        config_version: The configuration version for Puppet, one shell word.
        storeconfigs: Whether resources are exported and collected over the bus.
        selection: The tags in puppet.conf; the record has these even if the file changes.
    """

    command: str
    compilation: Compilation
    node_document: Path
    noop: bool
    tags: str | None
    extra: Sequence[str]
    config_version: str
    instance_facts: Path | None = None
    storeconfigs: bool = False
    root: Path | None = None
    selection: Mapping[str, str] = field(default_factory=dict)

    def argv(self) -> list[str]:
        """Return the arguments that decide what Puppet applies."""
        argv = [self.command, "apply", *self.compilation.options]
        argv += ["--config_version", f"/bin/echo {self.config_version}"]
        if self.storeconfigs:
            argv += STORECONFIGS
        if self.noop:
            argv.append("--noop")
        if self.tags:
            argv += ["--tags", self.tags]
        return [*argv, str(self.compilation.site_manifest), *self.extra]

    def shown(self) -> str:
        """Return a line for a shell, without the options for localpuppet's record."""
        needed = self.variables
        if self.node_document == self.compilation.enc_script.parent.parent / "node.yaml":
            del needed[NODE_DOCUMENT]
        if self.root is not None:
            needed[ROOT] = str(self.root)
        set_before = [f"{name}={shlex.quote(value)}" for name, value in needed.items()]
        return " ".join(["#", *set_before, shlex.join(self.argv())])

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that lead code in a run to its input."""
        return variables(self.node_document, self.instance_facts)

    def recorded(
        self, *, public: Path, report: Path, route_file: Path, reports: Iterable[str]
    ) -> list[str]:
        """Return Puppet's arguments, with the run's own files for its results.

        After a compilation failure Puppet writes nothing, so a shared file would still describe the
        previous run.
        """
        first, *rest = self.argv()
        return [
            first,
            rest[0],
            "--detailed-exitcodes",
            "--color=false",
            "--report",
            "--logdest",
            "console",
            "--publicdir",
            str(public),
            "--client_datadir",
            str(public / CLIENT_DATA),
            "--write_catalog_summary",
            "--classfile",
            str(public / CLASSES),
            "--resourcefile",
            str(public / "resources.txt"),
            "--lastrunfile",
            str(public / "last_run_summary.yaml"),
            "--lastrunreport",
            str(report),
            "--route_file",
            str(route_file),
            "--reports",
            ",".join(reports) or "none",
            *_FIXED,
            *(word for name, value in self.selection.items() for word in (f"--{name}", value)),
            *rest[1:],
        ]


def variables(node_document: Path, instance_facts: Path | None) -> dict[str, str]:
    """Return the environment variables that lead Puppet to its input."""
    named = {NODE_DOCUMENT: node_document, INSTANCE_FACTS: instance_facts}
    return {name: str(path) for name, path in named.items() if path is not None}


def error_lines(stderr: bytes) -> list[str]:
    """Return the lines of Puppet's standard error that give the reason of its failure.

    Such a line begins with a severity. Errors of Facter do not end a run, and `err()` in a manifest
    prints its scope first.
    """
    lines = stderr.decode("utf-8", "replace").splitlines()
    return [line for line in lines if is_final_error(line)]


def is_final_error(line: str) -> bool:
    """Return whether a line of Puppet's output may give the reason of its failure."""
    return _ERROR.match(line) is not None


def with_names(text: str, directories: Mapping[str, str]) -> str:
    """Return Puppet's text with shorter file names, relative to the release.

    Puppet prints `(file: /var/lib/localpuppet/releases/4be1…/web/manifests/init.pp, line: 3)`.

    Args:
        directories: Directory → prefix that replaces it.
    """
    for directory, start in directories.items():
        text = text.replace(f"(file: {directory}/", f"(file: {start}")
    return text


def file_name(path: str, directories: Mapping[str, str]) -> str:
    """Return the path of a file relative to the release, as in `with_names`."""
    for directory, start in directories.items():
        if path.startswith(f"{directory}/"):
            return f"{start}{path.removeprefix(f'{directory}/')}"
    return path


def in_release(path: str) -> str:
    """Return the path of a file relative to the stored tree that has it; other paths unchanged."""
    return _TREE.sub("", path)


def with_places_in_release(text: str) -> str:
    """Return a message of a report with the paths of its places relative to the stored tree."""
    return _PLACE.sub("(file: ", text)


def check_extra(extra: Sequence[str]) -> None:
    """Reject options for Puppet that conflict with localpuppet's own.

    Raises:
        InvalidInputError: An argument is an option that localpuppet sets, or is not an option.
    """
    if extra and not extra[0].startswith("-"):
        raise InvalidInputError(
            f"{extra[0]!r} is not an option of puppet apply",
            hint="behind '--' come Puppet's options",
        )
    for word in extra:
        # Ruby's OptionParser takes any case and any unique beginning of a name.
        name = word.lstrip("-").partition("=")[0].lower().replace("-", "_").removeprefix("no_")
        if word.startswith("--"):
            ours = any(option.startswith(name) for option in OURS)
        else:
            ours = word.startswith("-") and not _SHORT.fullmatch(word)
        if ours:
            raise InvalidInputError(
                f"{one_line(word.partition('=')[0])[:60]} is not for puppet's options here:"
                " localpuppet sets it itself, or it is an abbreviation",
                hint="see 'localpuppet apply --help' and localpuppet.yaml",
            )


_GC = {
    "RUBY_GC_HEAP_INIT_SLOTS": "600000",
    "RUBY_GC_MALLOC_LIMIT": "134217728",
    "RUBY_GC_MALLOC_LIMIT_MAX": "268435456",
    "RUBY_GC_OLDMALLOC_LIMIT": "268435456",
}


class FacterConf(Value):
    """A configuration of Facter that replaces the machine's."""

    file: Path
    cache: Path


class LeanStart(Value):
    """How Ruby starts for Puppet.

    Attributes:
        flags: Flags for Ruby; empty if the interpreter ignores RUBYOPT.
        file: The file that Ruby loads first.
        records: Whether Ruby records there which files lacked compiled code.
        facter: Facter's configuration; `None` for the machine's.
    """

    flags: Sequence[str]
    file: Path
    compiled: Path | None = None
    records: bool = True
    facter: FacterConf | None = None
    then: Path | None = None

    @property
    def is_possible(self) -> bool:
        """Whether Ruby loads the file: RUBYOPT cannot hold a path with spaces."""
        return bool(self.flags) and not any(map(str.isspace, str(self.file)))


def utf8(base: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that make Puppet use UTF-8 if the caller (for example cron) sets C."""
    locale = base.get("LC_ALL") or base.get("LC_CTYPE") or base.get("LANG") or "C"
    return {"LC_ALL": "C.UTF-8"} if locale in ("C", "POSIX") else {}


def environment(
    base: Mapping[str, str],
    *,
    lean: LeanStart,
    more: Mapping[str, str],
    lock: int | None = None,
    sealed: int | None = None,
) -> dict[str, str]:
    """Return the environment for Puppet: the caller's, and a leaner start of Ruby.

    The lean start's file removes the tuning again, so that Puppet's children see the caller's
    environment.

    Args:
        lock, sealed: Descriptors that Puppet inherits and its children do not: the lean start sets
            close-on-exec.
    """
    env = {**base, **more, **utf8(base)}
    if not lean.is_possible:
        return env
    added = {name: value for name, value in _GC.items() if name not in base}
    options = [*lean.flags, f"-r{lean.file}"]
    if lean.then is not None:
        options.append(f"-r{lean.then}")
    if "RUBYOPT" in base:
        options.append(base["RUBYOPT"])
        added["LOCALPUPPET_RUBYOPT"] = base["RUBYOPT"]
    if "LC_ALL" in utf8(base):
        added["LOCALPUPPET_LC_ALL"] = base.get("LC_ALL", "")
    if lock is not None:
        added["LOCALPUPPET_LOCK"] = str(lock)
    if sealed is not None:
        added[SEALED] = str(sealed)
    if lean.compiled is not None:
        added[COMPILED] = str(lean.compiled)
        if not lean.records:
            added["LOCALPUPPET_READ_ONLY"] = "1"
    if lean.facter is not None:
        added["LOCALPUPPET_FACTER_CONF"] = str(lean.facter.file)
        added["LOCALPUPPET_FACTER_CACHE"] = str(lean.facter.cache)
    env.update(added)
    env["RUBYOPT"] = " ".join(options)
    env["LOCALPUPPET_UNSET"] = " ".join(added)
    return env
