"""Asks an installed Puppet for its settings, once per version and configuration.

`puppet config print` takes a second or two, too long for each run. The answer is kept under a key
that changes with Puppet or its configuration.
"""

import os
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

from localpuppet import __version__
from localpuppet.base.errors import PuppetMissingError, StateError
from localpuppet.base.formats.json_file import read_json
from localpuppet.base.formats.text import last_words
from localpuppet.base.machine.files import make_private, write_json
from localpuppet.node.puppet.installation import (
    ASKED,
    LEAN_FLAGS,
    OF_RUNS,
    Installation,
    find_command,
    parse_settings,
    probe_environment,
    probe_took,
    probed_ruby,
    without_probed_ruby,
)

TIMEOUT = 120


@dataclass(slots=True, eq=False)
class PuppetProbe:
    """Finds the installed Puppet, and remembers its settings.

    Attributes:
        memory: The file of the answer.
        command: The site's setting; `None` to look for Puppet in the usual places.
        directories: `confdir` and `vardir`, if the site sets them.
        lean_start: The Ruby file of the lean start.
        env: The environment of `puppet config print`.
    """

    memory: Path
    _: KW_ONLY
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
        """Return the installed Puppet; ask it if necessary.

        Raises:
            PuppetMissingError: No Puppet was found, or it does not answer.
            StateError: The answer cannot be written.
        """
        known = self.known()
        if known is not None:
            return known
        command = find_command(self.command, self.env.get("PATH", ""))
        if command is None:
            raise PuppetMissingError(
                "cannot find Puppet",
                where=str(self.command or "/opt/puppetlabs/bin and PATH"),
                hint="install it (apt-get install puppet) or set puppet.command",
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
            if not lean or probe_took(stderr):
                break
        version, _ = self._run(command, ["--version"], self.env)
        of_runs, _ = self._run(
            command, ["config", "print", "--section", "user", *OF_RUNS, *own], self.env
        )
        settings = {**parse_settings(stdout), **parse_settings(of_runs)}
        missing = [name for name in (*ASKED, *OF_RUNS) if name not in settings]
        if missing:
            raise PuppetMissingError(
                f"'puppet config print' did not print {', '.join(missing)}", where=str(command)
            )
        return Installation(
            command=str(command),
            version=version.decode("utf-8", "replace").strip(),
            settings=settings,
            lean=lean,
            **(probed_ruby(stderr) if lean else {}),
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
        except (sh.ForkException, OSError) as error:
            raise PuppetMissingError("cannot be executed", where=str(command)) from error
        except (sh.ErrorReturnCode, sh.CommandNotFound) as error:
            error_text = getattr(error, "stderr", b"") or str(error).encode()
            text = last_words(without_probed_ruby(error_text), most=200)
            hint = f"check puppet.conf with '{command} {' '.join(arguments[:2])}'"
            if "must be lower case" in text:
                hint = "write 'certname' in puppet.conf in lower case"
            raise PuppetMissingError(
                f"does not work: {text}", where=str(command), hint=hint
            ) from error
        return bytes(done.stdout), bytes(done.stderr)
