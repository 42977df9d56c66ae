"""Puppet's own report of a run: what of it matters, and how it is read."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from localpuppet.errors import StateError
from localpuppet.formats.json_file import read_json
from localpuppet.formats.times import parse_time


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """How many resources of the catalog did what, as Puppet's report counts them."""

    total: int = 0
    changed: int = 0
    failed: int = 0
    skipped: int = 0
    out_of_sync: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What matters of Puppet's own report.

    Attributes:
        status: `unchanged`, `changed` or `failed`.
        noop: Whether Puppet changed nothing, whoever told it so (puppet.conf can, too).
        noop_pending: Whether a noop run found something to change.
        time: When Puppet began, ISO 8601.
        resources: Counts.
        seconds: Times by name (`config_retrieval`, `total`, …).
    """

    status: str
    noop: bool
    noop_pending: bool
    time: str
    resources: Resources
    seconds: Mapping[str, float]

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "Report":
        """Return the report.

        Args:
            raw: Puppet's JSON report, format 12 (https://www.puppet.com/docs/puppet/7/format_report.html).

        Raises:
            ValueError: It is not one.
        """
        try:
            metrics = raw["metrics"]
            counts = {row[0]: int(row[2]) for row in metrics.get("resources", {}).get("values", [])}
            fields = Resources.__dataclass_fields__
            seconds = {row[0]: float(row[2]) for row in metrics.get("time", {}).get("values", [])}
            return cls(
                status=str(raw["status"]),
                noop=bool(raw.get("noop", False)),
                noop_pending=bool(raw.get("noop_pending", False)),
                time=str(raw["time"]),
                resources=Resources(**{key: counts.get(key, 0) for key in fields}),
                seconds=seconds,
            )
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"not a Puppet report: {error!r}") from error


def read_report(path: Path, *, started: datetime) -> tuple[Report | None, str]:
    """Return the report in a run's own file, or why there is none.

    Args:
        path: In the run's directory, which did not exist before the run.
        started: When Puppet was started; an older report is not this run's.
    """
    try:
        report = Report.from_dict(read_json(path))
        # A clock may be set back by a run (ntp): a day tells a wrong file from a wrong clock.
        if parse_time(report.time) < started - timedelta(days=1):
            return None, f"the report is of another run ({report.time})"
    except FileNotFoundError:
        return None, ""
    except (StateError, ValueError) as error:
        return None, f"Puppet's report cannot be read: {error}"
    return report, ""
