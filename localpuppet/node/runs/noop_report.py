"""The changes that a noop run foresees, for a rollout whose operators approve them.

The node makes marks with a secret, `agent/changes.key`, which is created at first use.
"""

import secrets
from pathlib import Path

from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.files import add_durably, disk_errors, make_private
from localpuppet.node.puppet.changes import foreseen, key_of
from localpuppet.node.runs.records import Records
from localpuppet.node.runs.run_replies import report_of

FILE = Path("agent", "changes.key")
_BYTES = 32


class NoopReporter:
    """Returns the changes that noop runs foresee.

    Args:
        state: The state directory.
        records: The records of the node.
    """

    def __init__(self, state: Path, records: Records) -> None:
        self._path = state / FILE
        self._records = records

    def __call__(self, run: str, salt: str) -> dict[str, Json]:
        """Return what a run would have changed.

        Args:
            run: Its id.
            salt: The salt of the marks, besides the node's secret.

        Raises:
            InvalidInputError: No such run exists, or it was not a successful noop run.
        """
        directory = self._records.get(run)
        status = self._records.status(directory)
        if not (status.noop and status.succeeded):
            raise InvalidInputError("is not a successful noop run", where=str(run))
        key = key_of(self._secret(), salt)
        try:
            predicted = foreseen(report_of(directory), release=status.release, key=key)
        except FileNotFoundError as error:
            raise StateError("has no report", where=f"run {run}") from error
        except ValueError as error:
            raise StateError(str(error), where=str(directory.report)) from error
        return predicted.to_dict()

    def _secret(self) -> bytes:
        make_private(self._path.parent)
        add_durably(self._path, secrets.token_bytes(_BYTES))
        with disk_errors(self._path):
            secret = self._path.read_bytes()
        if len(secret) != _BYTES:
            raise StateError(
                "is damaged",
                where=str(self._path),
                hint="remove it; localpuppet then reports earlier changes as new",
            )
        return secret
