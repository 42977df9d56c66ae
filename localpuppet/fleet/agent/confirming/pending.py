"""A deployed release and its confirmation: what is remembered of it, and how long it waits.

    pending -> confirmed
            -> going back -> went back, or not
            -> left: somebody has decided otherwise

Owns: the value, its JSON form, and the seconds that it has waited. Refuses to know: files, and
what follows from waiting (`deciding`).

Invariant: no clock that somebody sets makes it wait for ever, nor sends a node back at once. Within
a boot the kernel's monotonic clock counts, which nobody sets and all processes share; it stands
while the machine sleeps, and so do we. It says nothing over a reboot. There the time of day tells
how long the machine was down, between nothing and the whole time, and from then on the monotonic
clock of the new boot counts again.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from localpuppet.base.errors import StateError
from localpuppet.base.formats.times import parse_time, show_duration
from localpuppet.base.formats.values import Json
from localpuppet.fleet.requests.confirmation import Stage
from localpuppet.node.enc.assignment import Assignment

SCHEMA = 1
OPEN = (Stage.PENDING, Stage.GOING_BACK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instant:
    """A moment by both clocks.

    Attributes:
        boot: The kernel's id of the boot.
        monotonic: Seconds since some moment of that boot.
        at: The time of day, ISO 8601, UTC.
    """

    boot: str
    monotonic: float
    at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """What is known of a deployed release that was run.

    Attributes:
        serial: Of its assignment.
        release: The release.
        by: Who assigned it, a caller id.
        rollout: The rollout that did; empty where somebody did by hand.
        run: The first run of it that is over.
        nonce: What has to come back through the bus, a UUID.
        within: Seconds for that.
        since: When the count began.
        reached: Whether a new connection was answered since: the release has not cut this node off.
        stage: Where it is.
        why: One line more; empty where there is nothing to say.
        newest: The newest run when this node decided to go back, and then the newest run of the
            older release that failed; empty before.
        tries: How many tries to go back have failed.
    """

    serial: int
    release: str
    by: str
    rollout: str
    run: str
    nonce: str
    within: float
    since: Instant
    reached: bool = False
    stage: Stage = Stage.PENDING
    why: str = ""
    newest: str = ""
    tries: int = 0

    def is_of(self, assignment: Assignment) -> bool:
        """Return whether this is the confirmation of an assignment; serials may begin anew."""
        mine = (self.serial, self.release, self.by, self.rollout)
        return mine == (assignment.serial, assignment.release, assignment.by, assignment.rollout)

    @property
    def silence(self) -> str:
        """Why this node goes back."""
        return f"no connection to the bus for {show_duration(self.within)}"

    def concerns(self, *, rolled_back: bool) -> bool:
        """Return whether a person who looks at the node should see it.

        Args:
            rolled_back: Whether a rollback is in force.
        """
        return self.stage in (*OPEN, Stage.NOT_BACK) or (
            rolled_back and self.stage is not Stage.CONFIRMED
        )

    def carried(self, now: Instant) -> "Confirmation":
        """Return the same with a count that goes on in the boot of `now`."""
        if self.since.boot == now.boot:
            return self
        passed = (parse_time(now.at) - parse_time(self.since.at)).total_seconds()
        passed = min(max(passed, 0.0), self.within)
        since = Instant(boot=now.boot, monotonic=now.monotonic - passed, at=self.since.at)
        return replace(self, since=since)

    def waited(self, now: Instant) -> float:
        """Return the seconds since the count began; `now` is of the same boot."""
        return max(now.monotonic - self.since.monotonic, 0.0)

    def to_public(self) -> dict[str, Json]:
        """Return what others may know; the nonce is apart: it is told when it can come back."""
        return {
            "serial": self.serial,
            "release": self.release,
            "rollout": self.rollout,
            "run": self.run,
            "stage": str(self.stage),
            "since": self.since.at,
            "within": self.within,
            "why": self.why,
        }

    def to_dict(self) -> dict[str, Json]:
        """Return the JSON form."""
        return {"schema": SCHEMA, **asdict(self), "stage": str(self.stage)}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Json]) -> "Confirmation":
        """Return the confirmation.

        Raises:
            StateError: It is not one that this version wrote.
        """
        try:
            if raw["schema"] != SCHEMA:
                raise ValueError("schema")
            since = raw["since"]
            if not isinstance(since, dict):
                raise TypeError("since")
            parse_time(str(since["at"]))
            texts = ("release", "by", "rollout", "run", "nonce", "why", "newest")
            return cls(
                serial=int(_number(raw, "serial")),
                tries=int(_number({"tries": 0, **raw}, "tries")),
                within=_number(raw, "within"),
                reached=raw["reached"] is True,
                stage=Stage(str(raw["stage"])),
                since=Instant(
                    boot=str(since["boot"]),
                    monotonic=_number(since, "monotonic"),
                    at=str(since["at"]),
                ),
                **{key: str(raw[key]) for key in texts},
            )
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"is damaged: {error}") from error

    def __str__(self) -> str:
        """Return one line for people."""
        return f"{self.release}: {self.stage}{f' ({self.why})' if self.why else ''}"


def _number(raw: Mapping[str, Json], key: str) -> float:
    value = raw[key]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(key)
    return float(value)
