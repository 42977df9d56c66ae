"""What a node remembers of its reactions: over restarts, kills and power cuts.

Owns: the value, its JSON form (schema version 1), and what a run that is over changes in it.
Refuses to know: files, clocks, what a change of an answer leads to (`deciding`).

- A good run replaces what is watched: its own questions, with the answers that it was given.
- A run that failed was given its answers, too: what it was told has had its run.
- A reaction that was decided stays in `pending` until its causes are in the inbox. Whoever finds it
  there hands it over again; the inbox takes a cause once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from localpuppet.base.errors import StateError
from localpuppet.fleet.agent.reactions.dependency import Dependency, EndedRun, Told
from localpuppet.fleet.agent.reactions.limits import Made
from localpuppet.fleet.triggers.cause import Cause

SCHEMA = 1
# Answers to one question that are remembered as having had their run.
MAX_HAD = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A question of the last good run.

    Attributes:
        question: It, and the last answer that is dealt with: a run was told it, or is to follow, or
            a line has said why none does.
        base: The digest of the answer that the last good run was given.
        had: Digests of answers that have had their run, or their line, since.
        tried: Whether a run has been told something since, or is to be.
    """

    question: Dependency
    base: str
    had: tuple[str, ...] = ()
    tried: bool = False

    def dealt_with(self, told: Told, *, tried: bool) -> "Watched":
        """Return the question with an answer that is dealt with.

        Args:
            told: The answer.
            tried: Whether a run was told it, or is to be.
        """
        had = tuple(digest for digest in self.had if digest != told.digest)
        return replace(
            self,
            question=replace(self.question, told=told),
            had=(*had, told.digest)[-MAX_HAD:],
            tried=self.tried or tried,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What is remembered.

    Attributes:
        run: The last run that was looked at; `None` before the first.
        watched: The questions of the last good run.
        made: The reactions of the last hour, the oldest first.
        pending: The causes of a reaction that may not be in the inbox yet.
    """

    run: str | None = None
    watched: tuple[Watched, ...] = ()
    made: tuple[Made, ...] = ()
    pending: tuple[Cause, ...] = ()

    def after(self, run: EndedRun) -> "State":
        """Return what is remembered after a run."""
        told = {one.id: one for one in run.told}
        if run.good:
            watched = tuple(Watched(question=one, base=one.told.digest) for one in told.values())
        else:
            watched = tuple(
                one.dealt_with(told[one.question.id].told, tried=True)
                if one.question.id in told
                else one
                for one in self.watched
            )
        return replace(self, run=run.run, watched=watched)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "schema": SCHEMA,
            "run": self.run,
            "watched": [
                {
                    "source": one.question.source,
                    "key": one.question.key,
                    "text": one.question.text,
                    "told": one.question.told.to_dict(),
                    "base": one.base,
                    "had": list(one.had),
                    "tried": one.tried,
                }
                for one in self.watched
            ],
            "made": [
                {"at": one.at, "nodes": list(one.nodes), "causes": list(one.causes)}
                for one in self.made
            ],
            "pending": [cause.to_dict() for cause in self.pending],
        }

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "State":
        """Return what is remembered.

        Raises:
            StateError: It is not what this version wrote.
        """
        try:
            if raw["schema"] != SCHEMA:
                raise ValueError("another schema")
            return cls(
                run=raw["run"],
                watched=tuple(_watched(one) for one in raw["watched"]),
                made=tuple(
                    Made(
                        at=float(one["at"]),
                        nodes=tuple(one["nodes"]),
                        causes=tuple(one["causes"]),
                    )
                    for one in raw["made"]
                ),
                pending=tuple(Cause.from_dict(one) for one in raw["pending"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StateError(f"is damaged: {type(error).__name__}", where="reactions") from error


class Memory(Protocol):
    """Where it is kept."""

    def load(self) -> State:
        """Return what is remembered; nothing before the first time.

        Raises:
            StateError: It cannot be read, or is damaged.
        """
        ...

    def save(self, state: State) -> None:
        """Remember it, durably.

        Raises:
            StateError: The disk refused; what was remembered stays.
        """
        ...


def _watched(raw: Mapping[str, Any]) -> Watched:
    question = Dependency(
        source=raw["source"],
        key=raw["key"],
        text=raw["text"],
        told=Told.from_dict(raw["told"]),
    )
    return Watched(
        question=question, base=raw["base"], had=tuple(raw["had"]), tried=raw["tried"] is True
    )
