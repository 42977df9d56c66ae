"""Compiles the catalog that a release gives for an input, and applies nothing.

Owns: the call of `puppet catalog compile`, and what its output says. Refuses to know: what the
catalog is compared with.
"""

import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from localpuppet.enc.document import NodeDocument
from localpuppet.errors import InvalidInputError
from localpuppet.formats.strict_json import loads
from localpuppet.formats.text import joined
from localpuppet.machine.files import make_private, write_durably
from localpuppet.machine.ports import Output, Processes
from localpuppet.puppet.command import Compilation, error_lines, utf8
from localpuppet.puppet.installation import Installation
from localpuppet.releases.difference import resources
from localpuppet.releases.release import Release

MAX_CATALOG = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogCompiler:
    """Compiles catalogs with this node's facts.

    Attributes:
        state: The state directory; scratch files are made there.
        compilation: Returns what a catalog is compiled from: of a release, in one of Puppet's
            environments, whose directory is in the given one.
        lookup_script: The Ruby file that goes with `puppet lookup`.
        installed: Returns the installed Puppet.
        env: The environment for Puppet.
        processes: Runs it.
        timeout: Seconds.
    """

    state: Path
    compilation: Callable[[Release, str, Path], Compilation]
    lookup_script: Path
    installed: Callable[[], Installation]
    env: Mapping[str, str]
    processes: Processes
    timeout: float

    def compile(self, release: Release, document: NodeDocument) -> dict[str, dict[str, str]]:
        """Return the resources of the catalog: reference → parameters as text.

        Raises:
            InvalidInputError: It does not compile, or not in time.
            PuppetMissingError: There is no Puppet.
            StateError: Puppet cannot be started, or the disk refused.
        """
        certname = self.installed().settings["certname"]
        words = ("catalog", "compile", certname, "--render-as", "json")
        return _resources(self.call(words, release, document), where=release.app)

    def call(
        self,
        words: Sequence[str],
        release: Release,
        document: NodeDocument,
        *,
        script: Path | None = None,
    ) -> Output:
        """Call Puppet with a release and a node document as a run has them; apply nothing.

        Args:
            words: What Puppet is to do, with the options of that.
            release: The release.
            document: The node document.
            script: Ruby that is loaded before Puppet.

        Raises:
            InvalidInputError: It did not end in time.
            PuppetMissingError: There is no Puppet.
            StateError: Puppet cannot be started, or the disk refused.
        """
        installation = self.installed()
        scratch = self.state / f"diff-{secrets.token_hex(4)}"
        try:
            make_private(scratch)
            path = scratch / "node.yaml"
            write_durably(path, document.to_yaml().encode())
            environments = scratch / "environments"
            (environments / document.environment).mkdir(parents=True)
            compilation = self.compilation(release, document.environment, environments)
            options = [*compilation.options, "--log_level", "err", "--color=false"]
            manifest = str(compilation.site_manifest)
            output = self.processes.capture(
                [installation.command, *words, *options, "--manifest", manifest],
                env={**self._env(script), "LOCALPUPPET_NODE_DOCUMENT": str(path)},
                timeout=self.timeout,
                limit=MAX_CATALOG,
            )
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        if output is None:
            raise InvalidInputError(
                f"'puppet {words[0]}' did not end within {self.timeout:g} s", where=release.app
            )
        return output

    def _env(self, script: Path | None) -> dict[str, str]:
        env = {**self.env, **utf8(self.env)}
        if script is not None:
            env["RUBYOPT"] = f"-r{script} {env.get('RUBYOPT', '')}".rstrip()
        return env


def _resources(output: Output, *, where: str) -> dict[str, dict[str, str]]:
    if output.ended.code != 0:
        errors = error_lines(output.stderr)
        problem = joined(errors[0] if errors else f"Puppet exited {output.ended.code}")[:300]
        raise InvalidInputError(f"the catalog does not compile: {problem}", where=where)
    text = output.stdout.decode("utf-8", "replace")
    try:
        return resources(loads(text[text.index("{") :]))
    except ValueError as error:
        raise InvalidInputError("Puppet printed no catalog", where=where) from error
