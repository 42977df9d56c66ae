"""Which groups an operator may seal to, and which holders may get the identity of one.

age does not say who made a file: the author of a pull request can wrap an identity of their own
for an operator. So a group in a work tree proves nothing, also if an operator's key opens it.
What counts is the newest verified release, and what this person has approved since, in a file
outside of the clone.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, StateError
from localpuppet.base.formats.converter import AllowedRange, JsonRecord
from localpuppet.base.formats.strict_json import parse_object
from localpuppet.base.machine.files import is_file, make_private, read_secret_file, write_json
from localpuppet.base.value import Value
from localpuppet.node.sealed.sealed_files import SealedGroup
from localpuppet.node.sealed.tree import SealedTree

MAX_APPROVALS = 32 * 1024 * 1024
# How much a serial or a number may rise from one release to the next.
MAX_STEP = 1000


class Claim(Value):
    """What a group says: its recipient and rule, or one of its holders, with the key."""

    text: str
    key: str


def head_of(group: SealedGroup) -> Claim:
    """Return what a group says of itself."""
    text = f'group {group.name}, rule "{group.rule}", serial {group.serial}: {group.recipient}'
    return Claim(text=text, key=group.recipient)


def holders_of(group: SealedGroup) -> list[Claim]:
    """Return who opens a group, operators first."""
    return [
        Claim(text=f"{what} {one.label} {one.recipient}", key=one.recipient)
        for what, members in (("operator", group.operators), ("node", group.members))
        for one in members
    ]


def refuse_regress(group: SealedGroup, before: SealedGroup, known_from: str) -> None:
    """Reject a group that cannot follow another one; `known_from` is where that is from.

    It has an older identity, another one with the same serial, or a serial that is far too high.
    """
    where = f"sealed/groups/{group.name}.yaml"
    if group.serial < before.serial:
        raise InvalidInputError(
            f"serial {group.serial} is older than {before.serial} of {known_from}: a member that"
            " was revoked could read the next value",
            where=where,
            hint="merge the branch that revoked it",
        )
    if group.serial == before.serial and group.recipient != before.recipient:
        raise InvalidInputError(f"has another recipient than {known_from}", where=where)
    refuse_step(group.serial, before.serial, what="serial", where=where)
    if group.serial > before.serial and group.recipient == before.recipient:
        raise InvalidInputError(
            f"serial {group.serial} has the recipient of serial {before.serial}", where=where
        )


def is_step(now: int, before: int) -> bool:
    """Return whether the commands can have reached a number since the release."""
    return now <= before + MAX_STEP


def refuse_step(now: int, before: int, *, what: str, where: str) -> None:
    """Reject a number that the commands cannot have reached: the last one blocks a file."""
    if not is_step(now, before):
        raise InvalidInputError(
            f"{what} {now} follows {before}: the commands raise it by one",
            where=where,
            hint="take the file of the release ('git checkout TAG -- FILE'), and change it again",
        )


class ApprovedGroup(JsonRecord):
    """What a person approved of one group."""

    serial: Annotated[int, AllowedRange(minimum=1)]
    claims: tuple[str, ...]


class Approvals(JsonRecord):
    """What a person approved: the groups of each repository by name."""

    SCHEMA: ClassVar = 1
    repositories: Mapping[str, Mapping[str, ApprovedGroup]]


class SealedTrust:
    """Decides which claims of groups in a work tree are known.

    `released` is the tree of the newest verified release, with its tag; empty without one. The
    private `file` outside of all clones has what a person approved of groups that no release has
    yet. `repository` is the URL of the origin, or the directory of a clone without one.
    """

    def __init__(self, released: SealedTree, tag: str, *, file: Path, repository: str) -> None:
        self.released = released
        self.tag = tag
        self._file = file
        self._repository = repository

    def last_serial(self, name: str) -> int:
        """Return the highest serial that is known of a group; 0 for a new one."""
        return max(self.released.serial_of(name), self._approved(name)[0])

    def unknown(self, group: SealedGroup, *, holders: bool) -> Sequence[Claim]:
        """Return what neither the release nor a person vouches for.

        With `holders`, operators and members count: they would get an identity.
        """
        before = self.released.group(group.name)
        serial, approved = self._approved(group.name)
        # A holder of an earlier identity may have been revoked: only the same serial counts.
        known = approved if group.serial == serial else frozenset[str]()
        if before is not None:
            refuse_regress(group, before, self.tag)
            if group.serial == before.serial:
                known |= {claim.text for claim in (head_of(before), *holders_of(before))}
        if group.serial < serial:
            raise InvalidInputError(
                f"serial {group.serial} is older than {serial}, which you approved",
                where=f"sealed/groups/{group.name}.yaml",
                hint="merge the branch that has it",
            )
        claims = [head_of(group), *(holders_of(group) if holders else ())]
        return [claim for claim in claims if claim.text not in known]

    def approve(self, group: SealedGroup, claims: Collection[Claim]) -> None:
        """Trust claims of a group durably, beside earlier ones that it still has."""
        serial, known = self._approved(group.name)
        if not claims and serial != group.serial:
            return
        present = {claim.text for claim in (head_of(group), *holders_of(group))}
        kept = known & present if serial == group.serial else frozenset()
        texts = tuple(sorted(kept | {claim.text for claim in claims}))
        before = self._read().repositories
        mine = dict(before.get(self._repository, {}))
        mine[group.name] = ApprovedGroup(serial=group.serial, claims=texts)
        make_private(self._file.parent)
        write_json(self._file, Approvals(repositories={**before, self._repository: mine}).to_dict())

    def _approved(self, name: str) -> tuple[int, frozenset[str]]:
        """Return the serial of a group that was approved, and its claims."""
        group = self._read().repositories.get(self._repository, {}).get(name)
        return (0, frozenset()) if group is None else (group.serial, frozenset(group.claims))

    def _read(self) -> Approvals:
        if not is_file(self._file):
            return Approvals(repositories={})
        data = read_secret_file(self._file, what="a record of approvals", limit=MAX_APPROVALS)
        hint = "remove it: you are asked again"
        try:
            return Approvals.from_dict(parse_object(data, where="", limit=MAX_APPROVALS))
        except LocalpuppetError as error:
            raise StateError(str(error), where=str(self._file), hint=hint) from error
