"""Why a run ended as it did, in words that may leave the node.

Puppet's errors hold values of parameters, so `Status.reason` stays in the node's own record. Other
nodes, journals and people get a category and a sentence with the failure cause (`puppet.fault`);
'localpuppet why RUN' on the node has the rest.
"""

from dataclasses import replace
from enum import StrEnum

from localpuppet.base.formats.text import shortened
from localpuppet.node.runs.run import Outcome, Status, show_resources

# Characters of a published reason.
MAX_PUBLIC_REASON = 200


class Category(StrEnum):
    """Why a run ended as it did."""

    NONE = ""
    NOOP_PENDING = "noop_pending"
    NOT_STARTED = "not_started"
    NO_REPORT = "no_report"
    RESOURCES_FAILED = "resources_failed"
    RUN_FAILED = "run_failed"
    KILLED = "killed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"


_WORDS = {
    Category.NONE: "",
    Category.NOT_STARTED: "Puppet was not started",
    Category.NO_REPORT: "Puppet wrote no report",
    Category.RUN_FAILED: "Puppet failed, or its exit code and its report disagree",
    Category.KILLED: "a signal killed Puppet",
    Category.TIMED_OUT: "ran longer than its timeout",
    Category.CANCELLED: "cancelled by a signal",
    Category.INTERRUPTED: "the supervisor died before the run ended",
}
_BY_OUTCOME = {
    Outcome.TIMED_OUT: Category.TIMED_OUT,
    Outcome.CANCELLED: Category.CANCELLED,
    Outcome.INTERRUPTED: Category.INTERRUPTED,
}


def category(status: Status) -> Category:
    """Return why a finished run ended as it did."""
    if status.outcome is None:
        return Category.NONE
    if status.outcome.success:
        return Category.NOOP_PENDING if status.noop_pending else Category.NONE
    if status.outcome in _BY_OUTCOME:
        return _BY_OUTCOME[status.outcome]
    if not status.puppet_started:
        return Category.NOT_STARTED
    if status.signal is not None:
        return Category.KILLED
    if status.resources is None:
        return Category.NO_REPORT
    return Category.RESOURCES_FAILED if status.resources.failed else Category.RUN_FAILED


def public_reason(status: Status) -> str:
    """Return the sentence for a run's category and its failure cause, without values."""
    why = category(status)
    resources = status.resources
    if why is Category.NOOP_PENDING:
        return f"noop: {show_resources(resources.out_of_sync if resources else 0)} would change"
    text = _WORDS.get(why, f"{show_resources(resources.failed if resources else 0)} failed")
    cause = status.failure_cause or {}
    if why is Category.NO_REPORT and cause.get("error") and not cause.get("resource"):
        text = "compile failed"
    for key, form in (("resource", ": {}"), ("place", " ({})"), ("error", ": {}")):
        text += form.format(cause[key]) if cause.get(key) else ""
    return shortened(text, MAX_PUBLIC_REASON)


def published(status: Status) -> Status:
    """Return a status as it may leave the node: without Puppet's own words."""
    return replace(status, reason=public_reason(status))
