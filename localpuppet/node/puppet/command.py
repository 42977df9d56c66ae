"""Puppet as a program: how it is called, what it leaves behind. Nothing is executed here.

Owns: the argument vector, what Puppet says of its end. The facts about Puppet that the choices rest
on are in docs/reference.md.
"""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.text import one_line

# Options that would make the record untrue, or the ENC and the modulepath somebody else's.
OURS = frozenset(
    (
        "apply",
        "catalog",
        "catalog_cache_terminus",
        "agent_catalog_run_lockfile",
        "agent_disabled_lockfile",
        "certname",
        "classfile",
        "client_datadir",
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
        "statedir",
        "storeconfigs",
        "storeconfigs_backend",
        "vardir",
        "version",
        "write_catalog_summary",
    )
)
# The termini are in modules/localpuppet.
STORECONFIGS = ("--storeconfigs", "--storeconfigs_backend", "localpuppet")
_ERROR = re.compile(r"Error: (?!Facter\b|Scope\()")
# Below a run's public directory: where Puppet keeps the facts of the run, as routes.yaml says. A
# directory of the run's own, or Puppet would take the facts of the run before from there.
CLIENT_DATA = "client_data"
# There, too: the classes in the catalog, which an apply does not write down by itself.
CLASSES = "classes.txt"
# Where `enc.sh`, and our facts in `modules/localpuppet`, look.
NODE_DOCUMENT = "LOCALPUPPET_NODE_DOCUMENT"
INSTANCE_FACTS = "LOCALPUPPET_INSTANCE_FACTS"
# Where the Ruby in `modules/localpuppet` finds the settings, and by them the bus.
ROOT = "LOCALPUPPET_ROOT"
_SHORT = re.compile("-[dtv]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compilation:
    """What a catalog is compiled from, whoever compiles it: a run, `lookup`, `release diff`.

    Attributes:
        own_directories: `--confdir`, `--vardir` where the site sets them.
        certname: The node's name where the site sets it; empty for Puppet's own setting.
        enc_script: What prints the node document.
        environments: A directory with one for each environment: Puppet requires it to exist, and
            what a site has in its own would be one more input. See `puppet.own_environment`.
        environment: Puppet's environment.
        environment_code: Directories of the release from which Puppet loads functions and data
            types as those of the environment.
        modulepath: Absolute directories.
        hiera_config: The release's `hiera.yaml`, if it has one.
        site_manifest: The `.pp` file, or a directory of them. Which option names it depends on
            what Puppet is to do.
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

    @property
    def options(self) -> list[str]:
        """Puppet's options, all but the site manifest."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyCommand:
    """One `puppet apply`, as the operator understands it.

    Attributes:
        command: Absolute path of Puppet.
        compilation: What the catalog is compiled from.
        node_document: Where the node document is; named in the environment when the ENC script
            would look elsewhere.
        noop: Whether to change nothing.
        tags: Puppet's tags, if only some resources are to be applied.
        extra: What the user wrote behind `--`.
        config_version: Puppet's name for the configuration, one word of a shell.
        instance_facts: Where the facts of the cloud's instance data are; `None` for none.
        storeconfigs: Whether resources are exported and collected, over the bus.
        root: The root whose bus the run asks; `None` for the default root.
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

    def argv(self) -> list[str]:
        """Return the arguments that decide what is applied."""
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
        """Return the line that can be pasted into a shell: without our bookkeeping."""
        needed = self.variables
        if self.node_document == self.compilation.enc_script.parent.parent / "node.yaml":
            del needed[NODE_DOCUMENT]
        if self.root is not None:
            needed[ROOT] = str(self.root)
        set_before = [f"{name}={shlex.quote(value)}" for name, value in needed.items()]
        return " ".join(["#", *set_before, shlex.join(self.argv())])

    @property
    def variables(self) -> dict[str, str]:
        """What the code in a run finds its input by."""
        return variables(self.node_document, self.instance_facts)

    def recorded(
        self, *, public: Path, report: Path, route_file: Path, reports: Iterable[str]
    ) -> list[str]:
        """Return the arguments with which Puppet is run: the result goes into the run's own files.

        After a compile failure Puppet writes nothing, so a shared file would still tell of the
        run before; a directory of this run's own cannot.
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
            *rest[1:],
        ]


def variables(node_document: Path, instance_facts: Path | None) -> dict[str, str]:
    """Return what Puppet's environment says of where its input is.

    Args:
        node_document: What the ENC script prints.
        instance_facts: What our Ruby takes facts from; `None` for nothing.
    """
    named = {NODE_DOCUMENT: node_document, INSTANCE_FACTS: instance_facts}
    return {name: str(path) for name, path in named.items() if path is not None}


def error_lines(stderr: bytes) -> list[str]:
    """Return the lines of Puppet's standard error that say why it gave up.

    Puppet begins a line with its severity. Facter's troubles end nothing, and what a manifest says
    with `err()` begins with its scope.
    """
    lines = stderr.decode("utf-8", "replace").splitlines()
    return [line for line in lines if _ERROR.match(line)]


def with_names(text: str, directories: Mapping[str, str]) -> str:
    """Return Puppet's text with the files of a release named as in the release.

    Puppet says `(file: /var/lib/localpuppet/releases/4be1…/web/manifests/init.pp, line: 3)`.

    Args:
        text: What Puppet printed.
        directories: Where files are → what their names begin with instead.
    """
    for directory, start in directories.items():
        text = text.replace(f"(file: {directory}/", f"(file: {start}")
    return text


def check_extra(extra: Sequence[str]) -> None:
    """Refuse arguments for Puppet that would take the run out of our hands.

    Raises:
        InvalidInputError: One is an option that localpuppet sets itself, or no option at all.
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
