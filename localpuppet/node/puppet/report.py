"""What a run's Puppet left: its report, facts, classes, kicks and components."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.base.formats.converter import Message
from localpuppet.base.formats.json_file import read_json
from localpuppet.base.formats.strict_json import parse_object
from localpuppet.base.formats.text import joined
from localpuppet.base.formats.times import parse_time
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.files import disk_errors
from localpuppet.base.value import Value

if TYPE_CHECKING:
    from localpuppet.node.puppet.fault import FailureCause


MAX_REASON = 2000


class Resources(Value):
    """Counts of resources by result, from Puppet's report."""

    total: int = 0
    changed: int = 0
    failed: int = 0
    skipped: int = 0
    out_of_sync: int = 0


class PuppetReport(Value):
    """The parts of Puppet's report that localpuppet uses.

    Attributes:
        status: `unchanged`, `changed` or `failed`.
        noop: Whether noop was in force, also from puppet.conf.
        noop_pending: Whether a noop run found something to change.
        first_failed: The first failed resource with its place and message, in one line, or empty.
        corrective_change: Whether Puppet restored, or in noop would restore, earlier values.
            'puppet apply' of Puppet 7 and 8 keeps no earlier values and reports false.
    """

    status: str
    noop: bool
    noop_pending: bool
    time: str
    resources: Resources
    seconds: Mapping[str, float]
    first_failed: str = ""
    failure_cause: "FailureCause | None" = None
    corrective_change: bool = False

    @classmethod
    def from_dict(
        cls, raw: Mapping[str, Any], directories: Mapping[str, str] = MappingProxyType({})
    ) -> "PuppetReport":
        """Return the report.

        Args:
            raw: Puppet's JSON report, format 12
                (https://www.puppet.com/docs/puppet/7/format_report.html).
            directories: Directories of the release, see `command_line.file_name`.
        """
        from localpuppet.node.puppet.fault import (
            FailureCause,  # a reader of records does not need it
        )

        try:
            metrics = raw["metrics"]
            counts = {row[0]: int(row[2]) for row in metrics.get("resources", {}).get("values", [])}
            fields = Resources.__dataclass_fields__
            seconds = {row[0]: float(row[2]) for row in metrics.get("time", {}).get("values", [])}
            failed = _first_failed(raw.get("resource_statuses") or {})
            reason = "" if failed is None else _message(failed, raw.get("logs") or ())
            return cls(
                status=str(raw["status"]),
                noop=bool(raw.get("noop", False)),
                noop_pending=bool(raw.get("noop_pending", False)),
                time=str(raw["time"]),
                resources=Resources(**{key: counts.get(key, 0) for key in fields}),
                seconds=seconds,
                first_failed="" if failed is None else _shown(failed, reason, directories),
                failure_cause=None
                if failed is None
                else FailureCause.of_resource(failed, reason, directories),
                corrective_change=bool(raw.get("corrective_change", False)),
            )
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"not a Puppet report: {error!r}") from error


def _first_failed(statuses: Mapping[str, Any]) -> Mapping[str, Any] | None:
    failed = [raw for raw in statuses.values() if raw.get("failed") or raw.get("failed_to_restart")]
    return min(failed, key=lambda raw: str(raw.get("time", "")), default=None)


def _shown(failed: Mapping[str, Any], message: str, directories: Mapping[str, str]) -> str:
    from localpuppet.node.puppet.command_line import (
        file_name,  # a reader of records does not need it
    )

    file, line = file_name(str(failed.get("file") or ""), directories), failed.get("line")
    place = f" ({file}{f':{line}' if line else ''})" if file else ""
    suffix = f": {message}" if message else ""
    return joined(f"{failed.get('resource')}{place}{suffix}")[:MAX_REASON]


def _message(failed: Mapping[str, Any], logs: Iterable[Mapping[str, Any]]) -> str:
    """Return Puppet's message about a resource.

    If its provider does not work, the report has no event, only a log with the resource's path.
    """
    messages = [event for event in failed.get("events") or () if event.get("status") == "failure"]
    if not messages:
        path = "".join(f"/{name}" for name in failed.get("containment_path") or ())
        messages = [log for log in logs if log.get("level") == "err" and log.get("source") == path]
    return str(messages[0].get("message") or "") if messages else ""


def make_ready() -> None:
    """Import what reading a report needs, because a run may remove localpuppet's own package."""
    from localpuppet.node.puppet import command_line, fault

    _ = command_line, fault


def read_report(
    path: Path, *, started: datetime, directories: Mapping[str, str]
) -> tuple[PuppetReport | None, str]:
    """Return the report in a run's own file, or the reason why it is missing.

    Args:
        path: A path in the run's directory, which did not exist before the run.
        started: When Puppet was started; an older report is not this run's.
    """
    try:
        report = PuppetReport.from_dict(read_json(path), directories)
        # A clock may be set back by a run (ntp): a day tells a wrong file from a wrong clock.
        if parse_time(report.time) < started - timedelta(days=1):
            return None, f"the report belongs to another run ({report.time})"
    except FileNotFoundError:
        return None, ""
    except (StateError, ValueError) as error:
        return None, f"Puppet's report cannot be read: {error}"
    return report, ""


# What Facter says of a machine is some ten to a hundred KiB; the largest that others would take.
MAX_FACTS = 2 * 1024 * 1024


class _FactsDocument(Message):
    IS_OPEN = True
    values: dict[str, Json]


def read_facts(public: Path) -> Mapping[str, Json]:
    """Return the facts of a run, structured, by name.

    Raises:
        StateError: Puppet stored no facts.
        InvalidInputError: The facts exceed `MAX_FACTS` bytes, or are malformed.
    """
    from localpuppet.node.puppet.command_line import CLIENT_DATA

    files = sorted((public / CLIENT_DATA / "facts").glob("*.json"))
    if not files:
        raise StateError("Puppet wrote no facts for this run", where=str(public))
    file = files[0]
    with disk_errors(file):
        data = file.read_bytes()
    return parse_facts(data, where=str(file))


def parse_facts(data: bytes, *, where: str) -> dict[str, Json]:
    """Return the facts in a document of Puppet: `{"values": {NAME: VALUE}}`.

    Raises:
        InvalidInputError: The document exceeds `MAX_FACTS`, or has no facts.
    """
    raw = parse_object(data, where=where, limit=MAX_FACTS)
    return _FactsDocument.read(raw, where=where).values


def read_classes(public: Path) -> list[str]:
    """Return the classes in the catalog of a run.

    Raises:
        StateError: Puppet left no classes.
    """
    from localpuppet.node.puppet.command_line import CLASSES

    file = public / CLASSES
    with disk_errors(file):
        return file.read_text("utf-8", "replace").split()


# `FILE` of `PuppetX::Localpuppet::Kicks` and `…::Components`, in the public directory of the run.
KICKS = "kicks.jsonl"
COMPONENTS = "components.jsonl"
MAX_BYTES = 1024 * 1024
_Note = TypeVar("_Note", bound=Message)


def read_noted(public: Path, name: str, form: type[_Note]) -> list[_Note]:
    """Return the notes of a run's catalog; empty if the file is missing.

    Args:
        name: `KICKS` or `COMPONENTS`.

    Raises:
        InvalidInputError: The file is too large, or a line is not a note of this form.
    """
    what = name.partition(".")[0]
    file = public / name
    data = b""
    with disk_errors(file), suppress(FileNotFoundError), file.open("rb") as opened:
        data = opened.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise InvalidInputError(f"has more than {MAX_BYTES} bytes", where=f"{what} of the catalog")
    return [
        form.read(parse_object(line, where=what, limit=MAX_BYTES), where=what)
        for line in data.splitlines()
    ]
