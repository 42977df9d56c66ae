"""A release with sealed values for a real node."""

from dataclasses import dataclass, field
from pathlib import Path

from localpuppet.node.sealed.age import AgeIdentity
from localpuppet.node.sealed.sealed_files import SealedGroup, ValueType
from tests.node.sealed.sealing import make_group, make_value
from tests.rigs.node import Node

HIERA = """version: 5
hierarchy:
  - name: sealed
    lookup_key: localpuppet::sealed
    datadir: sealed/values
    paths: ["nodes/%{trusted.certname}", "role/%{role}", common]
  - name: clear
    path: common.yaml
    datadir: data
"""


@dataclass
class Sealing:
    """The sealed values of one release."""

    directory: Path
    key: AgeIdentity  # the sealing key of the node
    # the groups of the release by name
    groups: dict[str, SealedGroup] = field(default_factory=dict)

    @classmethod
    def on(cls, node: Node, release: str = "app/tags/r1") -> "Sealing":
        """Give a node a sealing key and a release of `app` without values."""
        node.release("r1", "class app { }\n")
        node.want("tags/r1")
        key = AgeIdentity.generate()
        node.write("var/keys/sealing.key", f"{key}\n", 0o600)
        for directory in (node.state, node.state / "keys"):
            directory.chmod(0o700)
        directory = node.root / "modules" / release
        (directory / "hiera.yaml").write_text(HIERA)
        return cls(directory, key)

    def group(self, group: str, *, member: bool = True, name: str = "db01") -> None:
        """Make a group with a member that has the node's key, or another one."""
        owner = self.key if member else AgeIdentity.generate()
        self.groups[group], _ = make_group({name: owner}, {}, name=group)
        self._write(f"groups/{group}.yaml", self.groups[group].to_bytes())

    def set(
        self,
        path: str,
        content: str | bytes,
        *,
        group: str = "role=db",
        number: int = 1,
        type: str = "string",
    ) -> None:
        """Seal a value."""
        if group not in self.groups:
            self.group(group)
        data = content.encode() if isinstance(content, str) else content
        kind = ValueType(type)
        value = make_value(self.groups[group], data, path=path, number=number, kind=kind)
        self._write(f"values/{path}.yaml", value.to_bytes())

    def code(self, text: str) -> None:
        """Replace the class of the release."""
        (self.directory / "app/manifests/init.pp").write_text(f"class app {{\n{text}\n}}\n")

    def _write(self, name: str, data: bytes) -> None:
        path = self.directory / "sealed" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
