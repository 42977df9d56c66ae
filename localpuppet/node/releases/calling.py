"""Calls Puppet with a release and a node document as a run has them, and applies nothing."""

import json
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.files import make_private, write_durably
from localpuppet.base.machine.ports import Output, Processes
from localpuppet.base.value import Value
from localpuppet.node.enc.document import NodeDocument, to_yaml
from localpuppet.node.enc.instance.handover import hand_over
from localpuppet.node.puppet.command import Compilation, variables
from localpuppet.node.puppet.installation import Installation
from localpuppet.node.puppet.own_environment import make_environment
from localpuppet.node.releases.release import Release

MAX_OUTPUT = 256 * 1024 * 1024


class FactOverrides(Value):
    """Facts of another machine, or facts that override some of this machine's.

    Attributes:
        name: The node's name; `None` for this machine.
        values: The facts, as Facter returns them.
    """

    name: NodeName | None
    values: Mapping[str, Json]

    def options(self, scratch: Path) -> list[str]:
        """Write the facts into a private directory, and return Puppet's options for them."""
        if self.name is None:
            file = scratch / "facts.json"
            write_durably(file, json.dumps(self.values).encode())
            return ["--facts", str(file)]
        make_private(scratch / "facts")
        write_durably(scratch / "facts" / f"{self.name}.yaml", self.to_yaml().encode())
        return ["--facts_terminus", "yaml", "--yamldir", str(scratch)]

    def to_yaml(self) -> str:
        """Return the facts as a file for Puppet's terminus `yaml`."""
        # $trusted is made of clientcert, which Puppet adds to what Facter says.
        values = to_yaml({**self.values, "clientcert": str(self.name)})
        return f"--- !ruby/object:Puppet::Node::Facts\nname: {self.name}\nvalues: {values}\n"


class PuppetCaller(Value):
    """Calls Puppet, with this node's facts or given ones.

    Attributes:
        state: The state directory; scratch files are made there.
        compilation: Returns the compilation of a release, in a Puppet environment below the given
            directory.
        instance_facts: Returns the facts of the cloud's instance data.
        lookup_script: The Ruby file that `puppet lookup` loads.
        installed: Returns the installed Puppet.
        env: Returns the environment for a Puppet.
        processes: Runs Puppet.
        timeout: Seconds.
    """

    state: Path
    compilation: Callable[[Release, str, Path], Compilation]
    instance_facts: Callable[[], Mapping[str, str]]
    lookup_script: Path
    installed: Callable[[], Installation]
    env: Callable[[Installation], Mapping[str, str]]
    processes: Processes
    timeout: float

    def call(
        self,
        words: Sequence[str],
        release: Release,
        document: NodeDocument,
        *,
        script: Path | None = None,
        facts: FactOverrides | None = None,
    ) -> Output:
        """Call Puppet with a release and a node document as a run has them; apply nothing.

        Args:
            words: The subcommand of Puppet, with its options.
            release: The release.
            document: The node document.
            script: Ruby that is loaded before Puppet.
            facts: Facts of another machine, or for `puppet lookup` facts that override this node's;
                `None` for this node's.

        Raises:
            InvalidInputError: Puppet reached the timeout.
            PuppetMissingError: Puppet is not installed.
            StateError: Puppet cannot be started.
        """
        installation = self.installed()
        scratch = self.state / f"diff-{secrets.token_hex(4)}"
        try:
            make_private(scratch)
            path = scratch / "node.yaml"
            write_durably(path, document.to_yaml().encode())
            environments = scratch / "environments"
            compilation = self.compilation(release, document.environment, environments)
            if facts is not None and facts.name is not None:
                compilation = replace(compilation, certname=str(facts.name))
            make_environment(compilation)
            options = [*compilation.options, "--log_level", "err", "--color=false"]
            of_the_cloud = None
            if facts is None or facts.name is None:
                of_the_cloud = hand_over(self.instance_facts(), scratch)
            if facts is not None:
                options += facts.options(scratch)
            manifest = str(compilation.site_manifest)
            output = self.processes.capture(
                [installation.command, *words, *options, "--manifest", manifest],
                env={**self._env(installation, script), **variables(path, of_the_cloud)},
                timeout=self.timeout,
                limit=MAX_OUTPUT,
            )
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        if output is None:
            raise InvalidInputError(
                f"'puppet {words[0]}' did not end within {self.timeout:g} s", where=release.name
            )
        return output

    def _env(self, installation: Installation, script: Path | None) -> dict[str, str]:
        env = {**self.env(installation)}
        if script is not None:  # after the lean start, which makes Puppet's library load faster
            env["RUBYOPT"] = f"{env.get('RUBYOPT', '')} -r{script}".lstrip()
        return env
