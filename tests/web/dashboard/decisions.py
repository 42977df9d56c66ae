"""What nodes of a site decided about requests."""

from localpuppet.fleet.history.audit_record import AuditDecision, AuditRecord
from tests.web.dashboard.site import EVIL, Site

ROLLOUT = "20261122T110000Z-0a1b"


def record(at: float, caller: str, action: str, subject: str, reason: str = "") -> AuditRecord:
    return AuditRecord(
        at=at,
        caller=caller,
        action=action,
        subject=subject,
        decision=AuditDecision.REFUSED if reason else AuditDecision.ACCEPTED,
        reason=reason,
        request="",
    )


def decided(site: Site) -> None:
    """Have nodes publish what they decided."""
    now = site.now()
    hostile = record(now - 30, "choria=eve", EVIL[:150].replace("\u202e", ""), "=cmd()", "denied")
    step = record(now - 20, "choria=bob", "runonce", f"rollout {ROLLOUT} step 1")
    ours = record(now - 10, "choria=alice", "disable", "disk is full, for 2h")
    site.memory.write_history((), [("web01", [hostile, ours]), ("web02", [step])])
