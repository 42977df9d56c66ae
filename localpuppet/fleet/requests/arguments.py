"""The arguments of requests: deployments, catalogs, chunks of replies, and their rollout.

- A request for another caller's rollout acts for that caller, and needs the right `takeover`.
- The caller and the node check the arguments with the same rules.
- Values that look like a secret, or that would interpolate data of the node, do not cross the bus.
- `runs.preparing.AssignmentService` executes a deployment.
"""

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import field
from enum import StrEnum
from typing import Annotated

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.converter import ALWAYS, AllowedRange, JsonForm, Message
from localpuppet.base.formats.names import (
    ReleasePath,
    RolloutId,
    SignerName,
    parse_sha256,
    parse_uuid,
)
from localpuppet.base.formats.text import parse_choice, parse_line
from localpuppet.base.formats.values import Json, at, wrong_type
from localpuppet.fleet.bus import bus_limits as limits
from localpuppet.fleet.inventory.facts import is_secret
from localpuppet.fleet.trust.policy import DEPLOY, DEPLOYS, REQUESTS, TAKEOVER
from localpuppet.node.enc.document import Classes, EncData, references
from localpuppet.node.runs.holds import rollout_owner


class ChunkArguments(Message):
    """A chunk from 0, and the digest of the data that the caller began with, if it has begun."""

    chunk: Annotated[int, AllowedRange(minimum=0, maximum=limits.MAX_CHUNKS - 1), ALWAYS] = 0
    digest: Annotated[str, parse_sha256] = ""


def _refuse_mutable(release: ReleasePath, verb: str) -> None:
    if not release.is_tag:
        problem = f"{release} is not a tag, and only tags are {verb}"
        raise InvalidInputError(problem, where="release", hint="name SOURCE/tags/TAG")


class Compile(Message):
    """The arguments of `compile`."""

    release: ReleasePath

    def __post_init__(self) -> None:
        """Check the arguments before they are on the bus."""
        _refuse_mutable(self.release, "compared")


_NAMESPACE = uuid.UUID("5a7d1f1e-54c8-4f5e-8f0a-6a8a4a0b2a16")


def _caller(text: str) -> str:
    return SignerName.parse_caller(text).caller


class RolloutReference(Message):
    """The rollout of a request that is not a run.

    Attributes:
        epoch: How often the rollout was begun or resumed, from 1: a node rejects requests of an
            epoch before the newest one that it knows.
        caller: The caller id of the rollout's owner, if the request comes from another caller that
            took the rollout over; otherwise empty.
    """

    id: RolloutId
    epoch: Annotated[int, AllowedRange(minimum=1, maximum=limits.MAX_EPOCH)]
    caller: Annotated[str, _caller] = ""

    def owner(self, caller: str) -> str:
        """Return the owner of the rollout's holds."""
        return rollout_owner(self.caller or caller, self.id)

    def taken_over_by(self, caller: str) -> str:
        """Return the caller if it took over another caller's rollout, otherwise empty."""
        return "" if self.caller in ("", caller) else caller


class RolloutStep(RolloutReference):
    """The rollout of a request that is a run, and the number of its step, from 1."""

    step: Annotated[int, AllowedRange(minimum=1, maximum=limits.MAX_STEP)]


def step_uuid(owner: str, step: int) -> str:
    """Return the id of a step's cause on a node, which both sides compute."""
    return str(uuid.uuid5(_NAMESPACE, f"{owner}/{step}"))


# The rights that a caller can ask about besides releases.
_RIGHTS = (*(action for action in REQUESTS if action != DEPLOY), "older", TAKEOVER, "values")


def _right(text: str) -> str:
    if text.startswith(DEPLOYS):
        release = ReleasePath.parse(text.removeprefix(DEPLOYS), where="")
        return f"{DEPLOYS}{release}"
    if text not in _RIGHTS:
        raise InvalidInputError(
            f"the action {text[:40]!r} is unknown", hint=f"one of {', '.join(_RIGHTS)}"
        )
    return text


class StatusRequest(Message):
    """The arguments of `status`.

    Attributes:
        may: Actions and rights (`deploy:shop/tags/r7`, `values`); the node returns those that its
            policy denies the caller.
    """

    may: Annotated[
        tuple[Annotated[str, _right], ...], AllowedRange(minimum=1, maximum=len(_RIGHTS))
    ] = ()
    rollout: RolloutReference | None = None


class DeployAction(StrEnum):
    """The actions on a release."""

    STAGE = "stage"  # stage it, and report whether the node could apply it
    APPLY = "apply"  # apply it, and run
    ROLL_BACK = "roll_back"  # leave it, and return to what ran before
    CONFIRM = "confirm"  # the node's nonce came back: it need not roll itself back


def _action(text: str) -> DeployAction:
    return parse_choice(DeployAction, text, what="something that is done with a release")


def _layer(text: str) -> str:
    return parse_line(text, what="layer")


def _classes(raw: dict[str, Json]) -> Classes:
    for name, body in raw.items():
        if not isinstance(body, dict):
            raise wrong_type(body, "a mapping", name)
    return EncData.from_dict({"classes": raw}).classes


class Deploy(Message):
    """The arguments of `deploy`.

    Attributes:
        serial: The serial of the assignment: one above that of the assignment in force on the node.
        nonce: For `CONFIRM`: the node's nonce; otherwise empty.
    """

    release: ReleasePath
    action: Annotated[DeployAction, _action]
    serial: Annotated[int, AllowedRange(minimum=1, maximum=limits.MAX_SERIAL)]
    layers: Annotated[
        tuple[Annotated[str, _layer], ...],
        AllowedRange(minimum=1, maximum=limits.MAX_ASSIGNED_LAYERS),
    ] = ()
    classes: Annotated[Classes, JsonForm(_classes)] = field(default_factory=dict)
    allow_older: bool = False
    rollout: RolloutReference | None = None
    nonce: Annotated[str, parse_uuid] = ""

    def __post_init__(self) -> None:
        """Check the arguments before they are on the bus."""
        _refuse_mutable(self.release, "deployed")
        if self.action is DeployAction.ROLL_BACK and self.rollout is None:
            raise InvalidInputError(
                "only a rollout can roll back a release",
                where="action",
                hint="run 'localpuppet rollback' on the node",
            )
        if (self.action is DeployAction.CONFIRM) != bool(self.nonce) or (
            self.nonce and not self.rollout
        ):
            raise InvalidInputError(
                "a rollout confirms with a nonce, and nothing else has one", where="nonce"
            )
        values = {"layers": list(self.layers), "classes": dict(self.classes)}
        if len(json.dumps(values).encode()) > limits.MAX_ASSIGNED_DATA:
            raise InvalidInputError(
                f"layers and classes are larger than {limits.MAX_ASSIGNED_DATA} bytes",
                where="values",
                hint="put shared values in the release's enc.yaml",
            )
        for name, body in self.classes.items():
            for place in references(body, where=at("classes", name)):
                raise InvalidInputError(
                    "refers to a node parameter with %{…}, which a request may not read",
                    where=place,
                    hint="write the value; a percent sign before a brace is %{literal('%')}",
                )
            for place in _secrets(body, at("classes", name)):
                raise InvalidInputError(
                    "has the name of a secret, and the bus would carry its value",
                    where=place,
                    hint="put secrets in Hiera (eyaml) or in the node's own input",
                )

    @property
    def rights(self) -> tuple[str, ...]:
        """Return the rights that the caller needs, all of them."""
        values = ("values",) if self.layers or self.classes else ()
        return (f"{DEPLOYS}{self.release}", *values, *(("older",) if self.allow_older else ()))


def _secrets(value: Json | Mapping[str, Json], place: str) -> Iterator[str]:
    """Yield the places of keys with the name of a secret."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _secrets(item, at(place, index))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if is_secret(key):
                yield at(place, key)
            yield from _secrets(item, at(place, key))
