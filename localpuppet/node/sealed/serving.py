"""Gives one run's Puppet the sealed values that it asks for, and masks them in what the run leaves.

- Puppet inherits one end of a socket; what it starts does not. A request is one line of JSON,
  `["common/db::password"]`, and so is the answer: `type` with `text` or `base64`, or `error`.
- A value is opened when Puppet asks for it. Its plaintext is in no file, argument or variable, and
  this process and Puppet leave no core dump.
- A text of 8 or more characters is masked, and so is each such line of it. `puppet_x/…/sealed.rb`
  masks in Puppet what Puppet writes; this process masks Puppet's output, and whatever a version of
  Puppet with other ways should have left in the record.
"""

import json
import re
import socket
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from html import escape
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING
from urllib.parse import quote

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, errors_at
from localpuppet.base.formats.strict_json import loads
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.files import disk_errors, replace_file

if TYPE_CHECKING:
    from localpuppet.node.sealed.tree import SealedOpener

# Characters of the shortest text that is masked; also in `puppet_x/localpuppet/sealed.rb`.
MASKED = 8
MAX_REQUEST = 4096
# Files of a record that localpuppet writes.
OWN = ("request.json", "status.json")
_DUMPABLE = 4  # PR_SET_DUMPABLE of prctl(2)


class ValueMask:
    """Replaces opened values by the names of their keys."""

    def __init__(self) -> None:
        self._shown: dict[bytes, bytes] = {}
        self._longest_first: tuple[bytes, ...] = ()

    def add(self, path: str, value: Json) -> None:
        """Mask all texts of a value from now on, as they are and as programs quote them."""
        shown = f"[sealed {path}]".encode()
        known = dict(self._shown)
        for text in _texts(value):
            for line in (text, *map(str.strip, text.split("\n"))):
                if len(line) >= MASKED:
                    for form in _spellings(line):
                        known.setdefault(form.encode("utf-8", "surrogateescape"), shown)
        self._shown = known  # another thread reads it

    def hide(self, data: bytes) -> bytes:
        """Return data without opened values."""
        known, order = self._shown, self._longest_first
        if len(order) != len(known):
            # A long text may contain a short one, and is replaced first.
            self._longest_first = order = tuple(sorted(known, key=len, reverse=True))
        for secret in order:
            if secret in data:
                data = data.replace(secret, known[secret])
        return data

    def hide_in(self, directory: Path) -> list[Path]:
        """Mask the files of a record; return those that had an opened value.

        Puppet has not written `OWN`: a word of a value, `production` say, stays there.
        """
        changed = []
        for path in directory.rglob("*") if self._shown else ():
            if path.is_symlink() or not path.is_file() or path.name in OWN:
                continue
            with disk_errors(path):
                data = path.read_bytes()
                if (hidden := self._hidden(data)) != data:
                    replace_file(path, hidden, mode=0o600)
                    changed.append(path)
        return changed

    def _hidden(self, data: bytes) -> bytes:
        """Return a file without opened values; JSON stays JSON, also if a value is a number."""
        if (hidden := self.hide(data)) == data:
            return data
        try:
            before = loads(data)
        except (LocalpuppetError, ValueError):
            return hidden
        after = self._hidden_in(before)
        return data if after == before else json.dumps(after).encode()

    def _hidden_in(self, value: Json) -> Json:
        if isinstance(value, dict):
            return {str(self._hidden_in(k)): self._hidden_in(item) for k, item in value.items()}
        if isinstance(value, list):
            return [self._hidden_in(item) for item in value]
        if isinstance(value, str):
            return self.hide(value.encode("utf-8", "replace")).decode()
        return value


class SealedServer:
    """Opens values for one run; `make` is called for the first value."""

    def __init__(self, make: "Callable[[], SealedOpener]") -> None:
        self.mask = ValueMask()
        self._opener = cache(make)
        self._ours, self._theirs = socket.socketpair()
        self._thread = Thread(target=self._serve, daemon=True)

    @property
    def descriptor(self) -> int:
        """The descriptor that Puppet inherits."""
        return self._theirs.fileno()

    def start(self) -> None:
        """Answer requests, once Puppet has its end of the socket."""
        self._theirs.close()
        self._thread.start()

    def end(self, record: Path) -> list[Path]:
        """Stop answering, and mask the files of a record; return those that were masked."""
        if self._ours.fileno() < 0:
            return []
        self._theirs.close()
        with suppress(OSError):
            self._ours.shutdown(socket.SHUT_RDWR)
        if self._thread.ident is not None:
            self._thread.join()
        self._ours.close()
        return self.mask.hide_in(record)

    def _serve(self) -> None:
        import ctypes

        ctypes.CDLL(None).prctl(_DUMPABLE, 0, 0, 0, 0)
        with suppress(OSError), self._ours.makefile("rb") as requests:
            try:
                while (request := requests.readline(MAX_REQUEST)).endswith(b"\n"):
                    answer = json.dumps(self._answer(request)).encode()
                    self._ours.sendall(answer + b"\n")
            finally:  # Puppet has ended, does not keep to the form, or must not wait for an answer
                self._ours.shutdown(socket.SHUT_RDWR)

    def _answer(self, request: bytes) -> dict[str, Json]:
        try:
            with errors_at("the request of Puppet"):
                asked = loads(request)
                if not isinstance(asked, list) or len(asked) != 1:
                    raise InvalidInputError("names no value")
            return self._opened(str(asked[0]))
        except LocalpuppetError as error:
            return {"error": str(error)}
        except ValueError:
            return {"error": "the request of Puppet: is not JSON"}

    def _opened(self, path: str) -> dict[str, Json]:
        opener = self._opener()
        if (value := opener.tree.value(path)) is None:
            raise InvalidInputError("is not in the release", where=f"sealed/values/{path}.yaml")
        content = opener.content(value)
        text = content.decode("utf-8", "surrogateescape")
        self.mask.add(path, loads(content) if value.type == "data" else text)
        try:
            return {"type": str(value.type), "text": content.decode()}
        except UnicodeDecodeError:
            shown = b64encode(content).decode()
            self.mask.add(path, shown)  # as Puppet shows a Binary
            return {"type": str(value.type), "base64": shown}


def _spellings(line: str) -> Iterator[str]:
    """Yield a text as JSON, Ruby, Puppet and others have it; so does `spellings` in sealed.rb."""
    quoted = json.dumps(line, ensure_ascii=False)[1:-1]
    yield line
    if re.fullmatch(r"[\w.-]*", line, re.ASCII):
        return
    yield quoted
    yield re.sub(r"#(?=[{$@])", r"\\#", quoted)  # Ruby's `inspect`
    yield quoted.replace("$", r"\$")  # Puppet, in double quotes
    yield line.replace("\\", r"\\").replace("'", r"\'")  # Puppet, in single quotes
    yield line.replace("'", "''")  # YAML, SQL
    yield re.sub(r"[!\"`$\\]", r"\\\g<0>", line)  # Puppet's `shellquote`
    yield re.sub(r"[^\w+,./:@\n-]", r"\\\g<0>", line, flags=re.ASCII)  # shells
    yield quote(line, safe="", errors="surrogateescape")
    yield escape(line).replace("&#x27;", "&#39;")


def _texts(value: Json) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, int | float):
        yield str(value)
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)
