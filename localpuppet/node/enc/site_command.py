"""The site's ENC command, whose answer follows the same rules as a file."""

import shlex
from collections.abc import Callable, Mapping
from typing import cast

from localpuppet.base.errors import EncError, InvalidInputError, StateError
from localpuppet.base.formats.documents import Documents
from localpuppet.base.formats.names import NodeName, check_parameter
from localpuppet.base.formats.text import last_words
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.files import MAX_DOCUMENT
from localpuppet.base.machine.ports import Processes
from localpuppet.base.value import Value
from localpuppet.node.enc.document import EncData


def parse_command(text: str, *, where: str) -> tuple[str, ...]:
    """Return the command in the setting `enc`, words as in a shell."""
    try:
        argv = tuple(shlex.split(text))
    except ValueError as error:
        raise InvalidInputError(f"is not a command: {error}", where=where) from error
    if not argv or not argv[0].startswith("/"):
        raise InvalidInputError("must start with an absolute path", where=where)
    if "\0" in text:
        raise InvalidInputError("has a NUL character, which a command cannot have", where=where)
    return argv


class EncCommand(Value):
    """The site's ENC: a program that returns a node's ENC data.

    The node's name is appended to `argv`. `note` takes warnings about its answer.
    """

    argv: tuple[str, ...]
    timeout: float
    env: Mapping[str, str]
    note: Callable[[str], None] = lambda _text: None

    def _reachable(self, raw: Mapping[str, Json], where: str) -> dict[str, Json]:
        """Return the parameters that Puppet code can reach, as Puppet ignores others."""
        kept: dict[str, Json] = {}
        for name, value in cast("dict[str, Json]", raw.get("parameters") or {}).items():
            try:
                check_parameter(name, where=f"{where}: parameters")
                kept[name] = value
            except InvalidInputError as error:
                self.note(f"warning: {error.where}: {error.what}, so it is left out")
        return kept

    def ask(self, node: NodeName, *, processes: Processes, documents: Documents) -> EncData:
        """Return the command's answer for `node`, checked like every input.

        Raises:
            EncError: The command failed, reached the timeout, or its answer is empty or invalid.
        """
        where = f"enc {self.argv[0]}"
        try:
            output = processes.capture(
                [*self.argv, node], env=self.env, timeout=self.timeout, limit=MAX_DOCUMENT
            )
        except StateError as error:
            raise EncError(error.what, where=where, hint="see 'enc' in localpuppet.yaml") from error
        if output is None:
            if processes.cancellations():
                raise EncError("ended because localpuppet received a signal", where=where)
            raise EncError(f"enc timeout: timed out after {self.timeout:g} s", where=where)
        if len(output.stdout) > MAX_DOCUMENT:
            # localpuppet killed such a command, so that its exit code means nothing.
            raise EncError(f"printed more than {MAX_DOCUMENT} bytes", where=where)
        if output.ended.code != 0:
            how = f"exited {output.ended.code}"
            if output.ended.signal:
                how = f"was killed by signal {output.ended.signal}"
            error_text = last_words(output.stderr, most=200)
            raise EncError(f"{how}: {error_text}" if error_text else how, where=where)
        if not output.stdout.strip():
            raise EncError("printed nothing: it does not know the node", where=where)
        try:
            raw = documents.parse(output.stdout, schema="enc_output", where=where, ruby=True)
            return EncData.from_dict({**raw, "parameters": self._reachable(raw, where)})
        except InvalidInputError as error:
            placed = error if error.where.startswith(where) else error.at(where)
            raise EncError(placed.what, where=placed.where, hint=placed.hint) from error
