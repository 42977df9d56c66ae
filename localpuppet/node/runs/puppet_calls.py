"""Calls Puppet with a release as a run has it, and applies nothing: lookups, facts and catalogs.

`compile_nodes` compiles several inputs with the facts of several nodes; a node that does not
compile does not stop the others.
"""

import json
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from localpuppet.base.errors import InvalidInputError, errors_at
from localpuppet.base.formats import strict_yaml
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.strict_json import loads
from localpuppet.base.formats.text import last_words
from localpuppet.base.formats.values import Json, field_values
from localpuppet.base.machine.files import make_private, read_user_file, write_durably
from localpuppet.base.machine.own_program import shared_file
from localpuppet.base.machine.ports import Output, Processes
from localpuppet.base.value import Value
from localpuppet.node.enc.document import EncData, NodeDocument, to_yaml
from localpuppet.node.enc.input import LoadedInput, node_document
from localpuppet.node.enc.instance_facts import write_facts
from localpuppet.node.puppet.catalog import CatalogResource
from localpuppet.node.puppet.command_line import Compilation, error_lines, variables, with_names
from localpuppet.node.puppet.installation import Installation
from localpuppet.node.puppet.launching import make_environment
from localpuppet.node.releases.release import Release

MAX_OUTPUT = 256 * 1024 * 1024

# What `puppet_x/localpuppet/sealed.rb` gives for a value that is not opened.
_PLACEHOLDER = re.compile(r"\[sealed ([^\],\s]+), number \d+\]")


class FactOverrides(Value):
    """Facts of another machine, or facts that override some of this machine's."""

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

    `compilation` returns that of a release, in a Puppet environment below the given directory.
    """

    state: Path
    compilation: Callable[[Release, str, Path], Compilation]
    instance_facts: Callable[[], Mapping[str, str]]
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
            facts: Facts of another machine, or for `puppet lookup` facts that override this node's;
                `None` for this node's.

        Raises:
            InvalidInputError: Puppet reached the timeout.
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
                of_the_cloud = write_facts(self.instance_facts(), scratch)
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


class LookupResult(Value):
    """The result of a lookup: a value, or Hiera's explanation of where it looked."""

    found: bool
    value: Any
    explanation: str


class LookupRequest(Value):
    """A key (`hosts.web01`), and how it is looked up: by the data's merge strategy by default."""

    key: str
    explain: bool = False
    merge: str = ""
    type: str = ""

    def words(self) -> list[str]:
        """Return the arguments of `puppet lookup`.

        Raises:
            InvalidInputError: The text is not a key.
        """
        if not self.key.strip() or self.key.startswith("-"):
            raise InvalidInputError(f"{self.key[:60]!r} is not a Hiera key", where="KEY")
        given = {"--merge": self.merge, "--type": self.type}
        how = ["--explain"] if self.explain else ["--render-as", "json"]
        how += [f"{option}={value}" for option, value in given.items() if value]
        return ["lookup", self.key, "--compile", *how]


def look_up(
    request: LookupRequest,
    release: Release,
    document: NodeDocument,
    *,
    facts: FactOverrides | None,
    puppet: PuppetCaller,
) -> LookupResult:
    """Look up a key in Hiera.

    Args:
        document: The node document; its classes are compiled, as `lookup` in a run sees them.
        facts: Facts of another machine, or facts that override this node's; `None` for this node's.

    Raises:
        InvalidInputError: The key or the data are invalid, the value has another type, or the
            catalog does not compile.
    """
    words, where = request.words(), f"{release.name}: {request.key}"
    script = shared_file("lookup.rb")
    output = puppet.call(words, release, document, script=script, facts=facts)
    text = output.stdout.decode("utf-8", "replace")
    # Puppet exits 1 for both: there is no value, or something is wrong.
    problems = "\n".join(error_lines(output.stderr)) if output.ended.code == 1 else ""
    if output.ended.code not in (0, 1) or problems:
        named = with_names(problems.removeprefix("Error: Could not run: "), release.directories)
        error_text = last_words(named.encode(), most=600) or f"Puppet exited {output.ended.code}"
        raise InvalidInputError(f"lookup failed: {error_text}", where=where)
    if request.explain:
        return LookupResult(found="did not find a value" not in text, value=None, explanation=text)
    if output.ended.code == 1:
        return LookupResult(found=False, value=None, explanation="")
    try:
        # What a manifest prints while it compiles stands before the answer, which is one line.
        answer = text.rstrip("\n").rpartition("\n")[2]
        return LookupResult(found=True, value=loads(answer), explanation="")
    except ValueError as error:
        raise InvalidInputError("Puppet printed no value", where=where) from error


MAX_FACTS = 16 * 1024 * 1024


class CompiledNode(Value):
    """The result for one node.

    `plain` has sealed values outside of `Sensitive` (`common/db::password`); a problem says why
    there is no catalog.
    """

    input: str
    node: str
    resources: int
    plain: tuple[str, ...]
    problem: str

    def to_dict(self) -> dict[str, Json]:
        return {**field_values(self), "problem": self.problem or None}


def compile_nodes(
    release: Release,
    inputs: Sequence[LoadedInput],
    facts: Sequence[FactOverrides | None],
    *,
    compile_catalog: Callable[
        [Release, NodeDocument, FactOverrides | None], Sequence[CatalogResource]
    ],
    answer: Callable[[NodeName | None], EncData | None],
) -> tuple[CompiledNode, ...]:
    """Compile each input with each node's facts.

    Args:
        inputs: The inputs; the releases that they name are ignored.
        answer: Returns the answer of the site's ENC command for a node; `None` without a command.
    """
    compiled = []
    for loaded in inputs:
        for machine in facts:
            name = machine.name if machine else None
            resources: Sequence[CatalogResource] = ()
            problem = ""
            try:
                document = node_document(loaded, release.enc, answer=answer(name))
                resources = compile_catalog(release, document, machine)
            except InvalidInputError as error:
                problem = str(error)
            compiled.append(
                CompiledNode(
                    input=loaded.name,
                    node=name or "this node",
                    resources=len(resources),
                    plain=_plain(resources),
                    problem=problem,
                )
            )
    return tuple(compiled)


def _plain(resources: Iterable[CatalogResource]) -> tuple[str, ...]:
    """Return the sealed values whose placeholders resources have in clear, sorted."""
    texts = json.dumps([[one.title, one.parameters] for one in resources], default=dict)
    return tuple(sorted({*_PLACEHOLDER.findall(texts)}))


def read_facts(file: Path) -> FactOverrides:
    """Return the facts of a node in a file; see `read_values`.

    Raises:
        InvalidInputError: The file has no facts, or does not name their node.
    """
    raw, values = read_values(file)
    with errors_at(str(file)):
        name = NodeName.parse(str(_name(raw, values) or file.stem).lower())
    return FactOverrides(name=name, values=values)


def read_values(file: Path) -> tuple[dict[str, Json], dict[str, Json]]:
    """Return a facts file, as `facter --json` or `puppet facts` prints it, and its facts.

    Args:
        file: JSON, or YAML in a file `.yaml`: the facts, or `{"name": NODE, "values": facts}`.

    Raises:
        InvalidInputError: The file has no facts.
    """
    data = read_user_file(file, limit=MAX_FACTS)
    try:
        is_yaml = file.suffix in (".yaml", ".yml")
        raw = strict_yaml.parse(data, where=str(file)) if is_yaml else loads(data)
    except ValueError as error:
        raise InvalidInputError(
            "is not JSON", where=str(file), hint="facter --json, or puppet facts"
        ) from error
    if not isinstance(raw, dict):
        raise InvalidInputError("is not a mapping of facts", where=str(file))
    values = raw.get("values", raw)
    if not isinstance(values, dict):
        raise InvalidInputError("values is not a mapping of facts", where=str(file))
    return raw, values


def _name(raw: Mapping[str, Any], values: Mapping[str, Any]) -> object:
    networking = values.get("networking")
    fqdn = networking.get("fqdn") if isinstance(networking, dict) else None
    return (raw.get("name") if "values" in raw else None) or fqdn or values.get("fqdn")
