"""What `sealed check`, `release check` and `release tag` find in the sealed values of a tree."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, errors_at
from localpuppet.base.machine.files import read_user_file
from localpuppet.base.value import Value
from localpuppet.node.releases.author.hiera_data import top_keys
from localpuppet.node.releases.limits import MAX_HIERA_FILE
from localpuppet.node.sealed.age import check_form
from localpuppet.node.sealed.authoring import Keys, compare_members
from localpuppet.node.sealed.sealed_files import SealedGroup
from localpuppet.node.sealed.tree import SealedTree
from localpuppet.node.sealed.trust import UNCUT, PastSealed, refuse_regress, refuse_step

MIN_OPERATORS = 2


class SealedFindings(Value):
    """The result of a check.

    A `problem` prevents a release, a warning is to be known, and what `changed` since the newest
    verified release is to be read before it is signed.
    """

    groups: int = 0
    values: int = 0
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    def refuse(self) -> None:
        """Raise the first problem, with the number of all others."""
        if self.problems:
            more = f"; and {len(self.problems) - 1} more" if len(self.problems) > 1 else ""
            raise InvalidInputError(
                f"{self.problems[0]}{more}", hint="'localpuppet sealed check' lists all"
            )


def check_sealed(
    tree: SealedTree,
    *,
    released: SealedTree | None,
    past: PastSealed,
    wanted: Mapping[str, Keys] | None,
    authors: Mapping[str, str],
    data: Iterable[tuple[str, Path]],
    is_signed: bool | None,
) -> SealedFindings:
    """Check all groups and values.

    Args:
        released: The tree of the newest verified release; `None` without one.
        past: Groups and values since that release, and all values that it does not have.
        wanted: The nodes of each group's rule with their keys; `None` if the inventory is unknown.
        authors: `COMMIT AUTHOR` of the last change of a file.
        data: Hiera data by name.
        is_signed: Whether the source requires signed tags; `None` if no source is known.
    """
    if tree.is_empty:
        return SealedFindings()
    check = _SealedCheck(tree, released, past)
    with check.noting():
        tree.refuse_others()
    for name in tree.group_names():
        with check.noting():
            check.group(name, None if wanted is None else wanted.get(name, {}))
    for path in tree.paths():
        with check.noting():
            check.value(path, authors)
    check.problems += _plaintext({path.rpartition("/")[2] for path in tree.paths()}, data)
    check.changed += [
        f"resealed with the same numbers: {count} values{by}"
        for by, count in check.resealed.items()
    ]
    if is_signed is False:
        check.problems.append(
            "sealed: the source accepts unsigned tags, so everybody who can push could seal values"
            " (set require_signed and signers of the source)"
        )
    if is_signed is None:
        check.warnings.append("unknown: no source has the URL of origin, so nothing says who signs")
    elif released is None:
        check.warnings.append(
            "unknown: no tag verifies, so groups and values are compared with none"
        )
    if past.is_cut:
        check.warnings.append(f"unknown: the clone has only a part of the history ({UNCUT})")
    if wanted is None:
        check.warnings.append("unknown: without an inventory, members are as approved before")
    return SealedFindings(
        groups=len(tree.group_names()),
        values=len(tree.paths()),
        problems=tuple(check.problems),
        warnings=tuple(check.warnings),
        changed=tuple(check.changed),
    )


class _SealedCheck:
    """Collects what is wrong, and what changed since the release."""

    def __init__(self, tree: SealedTree, released: SealedTree | None, past: PastSealed) -> None:
        self._tree = tree
        self._released = released
        known = released or SealedTree.of_files({})
        self._serials = past.serials(known.serial_of)
        self._numbers = past.numbers(known.number_of)
        self._holders: dict[str, str] = {}
        self.problems: list[str] = []
        self.warnings: list[str] = []
        self.changed: list[str] = []
        self.resealed: Counter[str] = Counter()

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Turn an error into a problem."""
        try:
            yield
        except LocalpuppetError as error:
            self.problems.append(str(error))

    def group(self, name: str, wanted: Keys | None) -> None:
        if (group := self._tree.group(name)) is None:
            return
        where = f"sealed/groups/{name}.yaml"
        for one in group.everybody:
            with errors_at(f"{where}: {one.label}"):
                check_form(one.wrap, plugins=bool(one.recipient.plugin))
            other = self._holders.setdefault(one.recipient, one.label)
            if other != one.label and set(other.split(",")).isdisjoint(one.names):
                raise InvalidInputError(
                    f"{one.label} has the key of {other}",
                    where=where,
                    hint="each makes its own with 'localpuppet keys init'",
                )
        if len(group.operators) < MIN_OPERATORS:
            self.warnings.append(f"group {name} has fewer than {MIN_OPERATORS} operators")
        if wanted is not None:
            difference = compare_members(group, wanted)
            for what, names in (
                ("cannot open its values yet", difference.new),
                ("has changed its key", difference.rotated + difference.replaced),
                ("still can open its values", difference.gone),
                ("publishes no sealing key", difference.keyless),
            ):
                self.warnings += [f"group {name}: {member} {what}" for member in names]
        if group.serial < self._serials.get(name, 0):
            raise InvalidInputError(
                f"serial {group.serial} is older than {self._serials[name]} in the history:"
                " a revoked member may open its values",
                where=where,
                hint="merge the branch that has it; if that one is false, 'localpuppet sealed"
                " revoke' skips its serial",
            )
        before = None if self._released is None else self._released.group(name)
        if before is not None:
            self._compare(group, before)
        elif self._released is not None:
            refuse_step(group.serial, 0, what="serial", where=where)
            self.changed.append(f"new group {name}: rule {group.rule}")

    def _compare(self, group: SealedGroup, before: SealedGroup) -> None:
        """Refuse a group that must not follow that of the release; note what to approve."""
        refuse_regress(group, before, "the release")
        head = f"group {group.name}"
        if group.serial > before.serial:
            self.changed.append(f"{head}: new identity, serial {group.serial}")
        if group.rule != before.rule:
            self.changed.append(f"{head}: rule {before.rule} is now {group.rule}")
        for what, old, new in (
            ("operator", before.operators, group.operators),
            ("member", before.members, group.members),
        ):
            keys = {one.label: one.recipient for one in old}
            now = {one.label: one.recipient for one in new}
            self.changed += [f"{head}: {what} {name} removed" for name in keys if name not in now]
            self.changed += [
                f"{head}: {what} {name} {'has another key' if name in keys else 'added'}: {key}"
                for name, key in now.items()
                if keys.get(name) != key
            ]

    def value(self, path: str, authors: Mapping[str, str]) -> None:
        if (value := self._tree.value(path)) is None:
            return
        where = f"sealed/values/{path}.yaml"
        with errors_at(where):
            check_form(value.age)
        self._tree.group_of(value)
        if self._released is None:
            return
        before = self._released.value(path)
        if value == before:
            return
        by = f" ({authors.get(where, 'not committed')})"
        past = self._numbers.get(path, 0)
        refuse_step(value.number, before.number if before else past, what="number", where=where)
        again = "seal it again with 'localpuppet sealed set'"
        for highest, known_from in ((before.number if before else 0, "release"), (past, "history")):
            if value.number < highest:
                raise InvalidInputError(
                    f"number {value.number} is older than {highest} in the {known_from}",
                    where=where,
                    hint=again,
                )
        if before is None:
            self.changed.append(f"new value {path} for {value.group}{by}")
        elif value.number > before.number:
            differs = (value.group, value.type) != (before.group, before.type)
            moved = f"{before.type} for {before.group} is now {value.type} for {value.group}, "
            numbers = f"number {before.number} → {value.number}{by}"
            self.changed.append(f"value {path}: {moved if differs else ''}{numbers}")
        elif (value.group, value.type) != (before.group, before.type):
            raise InvalidInputError("has another group or type with the same number", where=where)
        elif value.serial == before.serial:
            # Only 'revoke' seals a value again under its number, and raises the serial.
            raise InvalidInputError(
                f"has other bytes than the release with the same number{by}",
                where=where,
                hint=again,
            )
        else:
            self.resealed[by] += 1


def _plaintext(keys: set[str], data: Iterable[tuple[str, Path]]) -> list[str]:
    """Return the Hiera data that have a sealed key in clear."""
    problems = []
    for name, file in data:
        data_of = read_user_file(file, limit=MAX_HIERA_FILE)
        if any(key.encode() in data_of for key in keys):
            problems += [
                f"{name}: {key} is sealed, and is here in clear (remove it)"
                for key in sorted(keys & top_keys(data_of))
            ]
    return problems
