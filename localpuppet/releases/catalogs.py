"""Compiles the catalog that a release gives for an input, and applies nothing.

Owns: the call of `puppet catalog compile`, and what its output says. Refuses to know: what the
catalog is compared with.
"""

import json
import secrets
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from localpuppet.enc.document import NodeDocument
from localpuppet.errors import InvalidInputError
from localpuppet.formats.text import one_line
from localpuppet.machine.files import make_private, write_durably
from localpuppet.machine.ports import Processes
from localpuppet.puppet.installation import Installation
from localpuppet.releases.difference import resources
from localpuppet.releases.release import Release

MAX_CATALOG = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogCompiler:
    """Compiles catalogs with this node's facts.

    Attributes:
        state: The state directory; scratch files are made there.
        directories: Puppet's own directories by the name of their setting.
        enc_script: Prints the node document.
        site_manifest: The site manifest.
        own_modules: Our own Puppet modules, behind the release's.
        installed: Returns the installed Puppet.
        env: The environment for Puppet.
        processes: Runs it.
        timeout: Seconds.
    """

    state: Path
    directories: Mapping[str, Path]
    enc_script: Path
    site_manifest: Path
    own_modules: Path
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
        installation = self.installed()
        scratch = self.state / f"diff-{secrets.token_hex(4)}"
        try:
            make_private(scratch)
            path = scratch / "node.yaml"
            write_durably(path, document.to_yaml().encode())
            environments = scratch / "environments"
            (environments / document.environment).mkdir(parents=True)
            command = self._command(installation, release, document.environment, environments)
            return self._run(command, {"LOCALPUPPET_NODE_DOCUMENT": str(path)}, where=release.app)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _command(
        self, installation: Installation, release: Release, environment: str, environments: Path
    ) -> list[str]:
        command = [installation.command, "catalog", "compile", installation.settings["certname"]]
        for name, directory in self.directories.items():
            command += [f"--{name}", str(directory)]
        command += ["--node_terminus", "exec", "--external_nodes", str(self.enc_script)]
        command += ["--environmentpath", str(environments)]
        command += ["--environment", environment, "--log_level", "err"]
        command += ["--modulepath", ":".join(map(str, (*release.modulepath, self.own_modules)))]
        if release.hiera_config:
            command += ["--hiera_config", str(release.hiera_config)]
        site_manifest = release.site_manifest or self.site_manifest
        return [*command, "--manifest", str(site_manifest), "--render-as", "json"]

    def _run(
        self, command: list[str], more: Mapping[str, str], *, where: str
    ) -> dict[str, dict[str, str]]:
        output = self.processes.capture(
            command, env={**self.env, **more}, timeout=self.timeout, limit=MAX_CATALOG
        )
        if output is None:
            raise InvalidInputError(
                f"the catalog was not compiled within {self.timeout:g} s", where=where
            )
        if output.ended.code != 0:
            errors = [
                line
                for line in output.stderr.decode("utf-8", "replace").splitlines()
                if "Error" in line and "Facter" not in line
            ]
            problem = one_line(errors[0] if errors else f"Puppet exited {output.ended.code}")[:300]
            raise InvalidInputError(f"the catalog does not compile: {problem}", where=where)
        text = output.stdout.decode("utf-8", "replace")
        try:
            return resources(json.loads(text[text.index("{") :]))
        except ValueError as error:
            raise InvalidInputError("Puppet printed no catalog", where=where) from error
