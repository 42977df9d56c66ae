"""Groups and values for tests, with real keys."""

from collections.abc import Mapping, Sequence

from localpuppet.node.sealed.age import AgeIdentity
from localpuppet.node.sealed.sealed_files import SealedGroup, SealedValue, ValueType
from localpuppet.node.sealed.tree import SealedTree


def make_group(
    members: Mapping[str, AgeIdentity],
    operators: Mapping[str, AgeIdentity],
    *,
    name: str = "role=db",
    serial: int = 1,
    identity: AgeIdentity | None = None,
) -> tuple[SealedGroup, AgeIdentity]:
    identity = identity or AgeIdentity.generate()
    group = SealedGroup(
        name=name, rule=name, recipient=identity.recipient, serial=serial, operators=(), members=()
    )

    def wrapped(holders: Mapping[str, AgeIdentity]) -> Sequence:  # type: ignore[type-arg]
        return [group.wrap(identity, [who], key.recipient) for who, key in holders.items()]

    return group.with_members(members=wrapped(members), operators=wrapped(operators)), identity


def make_value(
    group: SealedGroup,
    content: bytes = b"correct horse",
    *,
    path: str = "common/db::password",
    number: int = 1,
    kind: ValueType = ValueType.STRING,
) -> SealedValue:
    value = SealedValue(
        path=path, group=group.name, serial=group.serial, number=number, type=kind, age=b""
    )
    return value.seal(content, group.recipient)


def tree_of(groups: Sequence[SealedGroup], values: Sequence[SealedValue]) -> SealedTree:
    files = {f"groups/{group.name}.yaml": group.to_bytes() for group in groups}
    files |= {f"values/{value.path}.yaml": value.to_bytes() for value in values}
    return SealedTree.of_files(files)
