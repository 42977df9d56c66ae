"""The interface of a release: what its modules offer, and whether a node document fits it.

Puppet's own parser reads the classes, parameters, types and defaults. Only documents that would
certainly fail in Puppet are rejected.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import ClassVar

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.converter import JsonRecord
from localpuppet.base.formats.names import did_you_mean
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.values import Json, at, type_names
from localpuppet.node.enc.document import Classes, NodeDocument
from localpuppet.node.puppet.types import METAPARAMETERS, fits, read
from localpuppet.node.releases.module_metadata import IMPLEMENTATIONS


class SourceLocation(JsonRecord):
    """A location in Puppet code.

    Attributes:
        directory: The index in the modulepath, from 0; higher indexes are code outside of modules.
        file: The file, relative to that directory: `web/manifests/init.pp`; empty if the directory
            is itself a file.
    """

    directory: int
    file: str
    line: int | None


class Parameter(JsonRecord):
    """A parameter of a class, required if it has no default."""

    type: str | None
    required: bool
    default: str | None


class ClassInterface(JsonRecord):
    place: SourceLocation
    parameters: Mapping[str, Parameter]


class Problem(JsonRecord):
    """An error of Puppet's parser."""

    place: SourceLocation
    message: str


class InterfaceNeed(JsonRecord):
    """A name that the code uses and that neither the release nor Puppet defines.

    Attributes:
        kind: `class`, `type`, `function`, `data type`; `query` for a function that asks the bus.
        module: `puppetlabs/MODULE`, where Puppet's own packages bundle it; else empty.
    """

    kind: str
    name: str
    module: str
    place: SourceLocation


class Interface(JsonRecord):
    """The interface of the directories of a modulepath, as `base/share/interface.rb` prints it.

    Attributes:
        implementation: `openvox` or `puppet`; a Puppet or early OpenVox 8 that has no such name is
            `puppet`.
        modules: Every module, and whether it may hold Hiera data.
        modulepath: The names of the directories, and of code outside of modules, in messages; who
            reads a kept interface gives it those of the present release.
    """

    SCHEMA: ClassVar = 4
    puppet: str
    implementation: str
    modules: Mapping[str, bool]
    problems: tuple[Problem, ...]
    classes: Mapping[str, ClassInterface]
    needs: tuple[InterfaceNeed, ...]
    modulepath: tuple[str, ...] = ()

    @property
    def parser(self) -> str:
        """The program that read it, in messages: `OpenVox 8.28.1`."""
        return f"{IMPLEMENTATIONS.get(self.implementation, 'Puppet')} {self.puppet}"

    def show(self, place: SourceLocation) -> str:
        """Return `DIRECTORY/FILE:LINE`."""
        path = "/".join(filter(None, [self.modulepath[place.directory], place.file]))
        return f"{path}:{place.line}" if place.line else path

    def unmet(
        self, *, bus: bool, locked: Collection[str], modules: Collection[str] = ()
    ) -> list[str]:
        """Return what the code needs and a node lacks, a line for each name or module.

        `metadata.json` says what locked modules need, except for what Puppet's own packages bundle.
        """
        lines: dict[str, str] = {}
        for need in self.needs:
            if not _is_met(need, bus=bus, locked=locked, modules=modules):
                space = need.name.lower().partition("::")[0]
                key = need.name if space in self.modules else space
                lines.setdefault(key, self._explain(need, space))
        return list(lines.values())

    def _explain(self, need: InterfaceNeed, space: str) -> str:
        problem = f"neither the release nor {self.parser} here has the {need.kind} {need.name}"
        cure = f"name {need.module or 'its module'} in manifest.yaml"
        if need.kind == "query":
            problem = f"{need.name} queries the bus, but no bus is configured"
            cure = "write 'bus:' into localpuppet.yaml"
        elif space in self.modules and not need.module:
            cure = f"correct the name, or lock another version of the module {space}"
        return f"{self.show(need.place)}: {problem} ({cure})"

    def refuse_problems(self) -> None:
        """Reject a release that Puppet cannot parse."""
        if self.problems:
            first, more = self.problems[0], len(self.problems) - 1
            raise InvalidInputError(
                f"Puppet cannot parse it: {one_line(first.message)}",
                where=self.show(first.place),
                hint=f"and {more} more" if more else "",
            )


def _is_met(
    need: InterfaceNeed, *, bus: bool, locked: Collection[str], modules: Collection[str]
) -> bool:
    if need.kind == "query":
        return bus
    if need.module:
        return need.module.partition("/")[2] in modules
    # What else the node's own modules have, Puppet alone knows.
    return bool(modules) or need.place.file.partition("/")[0] in locked


def check(
    document: NodeDocument,
    interface: Interface,
    *,
    data_elsewhere: bool,
    other_classes: Collection[str] = (),
    other_modules: Collection[str] = (),
) -> None:
    """Check a node document against the interface of its release.

    Args:
        data_elsewhere: Whether Hiera data outside of modules may give a class its parameters.
        other_modules: Modules outside of the release, whose classes only Puppet knows.
    """
    known = {
        name: body
        for name, body in document.classes.items()
        if name in interface.classes or name.partition("::")[0] not in other_modules
    }
    check_classes(known, interface, other_classes=other_classes)
    for name, body in document.classes.items():
        class_interface = interface.classes.get(name)
        if (
            class_interface is None
            or data_elsewhere
            or interface.modules.get(name.partition("::")[0], True)
        ):
            continue
        for key, parameter in class_interface.parameters.items():
            if parameter.required and key not in body:
                wanted = f" ({one_line(parameter.type)})" if parameter.type else ""
                raise InvalidInputError(
                    f"the class {name} needs the parameter {key!r}{wanted}, which has no default",
                    where=at("classes", name),
                    hint=f"see {interface.show(class_interface.place)}",
                )


def check_classes(
    classes: Classes, interface: Interface, *, other_classes: Collection[str] = ()
) -> None:
    """Check classes against an interface, if other sources may add parameters.

    Args:
        classes: Classes with their parameters; `None` and `%{…}` in values are ignored.
    """
    for name, body in classes.items():
        class_interface = interface.classes.get(name)
        if class_interface is not None:
            _check_body(name, class_interface, body, interface)
        elif name.rpartition("::")[2] not in other_classes:
            raise InvalidInputError(
                f"the release has no class {name!r}",
                where=at("classes", name),
                hint=_nearest(name, interface),
            )


def only_in_other(
    document: NodeDocument, own: Interface, other: Interface
) -> tuple[NodeDocument, list[str]]:
    """Return a document that fits the release, and the names that were left out.

    Classes, and parameters of shared classes, that only the other release has are left out. Names
    that neither has stay, so that the compilation rejects them.
    """
    classes: dict[str, Mapping[str, Json]] = {}
    left = []
    for name, body in document.classes.items():
        mine, theirs = own.classes.get(name), other.classes.get(name)
        if mine is None and theirs is not None:
            left.append(f"class {name}")
            continue
        new = set(theirs.parameters) - set(mine.parameters) if mine and theirs else set()
        classes[name] = {key: value for key, value in body.items() if key not in new}
        left += [f"parameter {name}::{key}" for key in body if key in new]
    return replace(document, classes=classes), left


def _nearest(name: str, interface: Interface) -> str:
    """Return the hint for an unknown class: a similar name, or the file that would define it."""
    known = list(interface.classes)
    hint = did_you_mean(name, known)
    if hint.startswith("did you mean"):
        return hint
    module, _, rest = name.partition("::")
    file = f"{module}/manifests/{rest.replace('::', '/') or 'init'}.pp"
    return f"no directory of the modulepath has {file}"


def _check_body(
    name: str, class_interface: ClassInterface, body: Mapping[str, Json], interface: Interface
) -> None:
    for key, value in body.items():
        where = at(at("classes", name), key)
        parameter = class_interface.parameters.get(key)
        if parameter is None:
            if key in METAPARAMETERS:
                continue
            hint = did_you_mean(key, list(class_interface.parameters))
            raise InvalidInputError(
                f"the class {name} has no parameter {key!r}",
                where=where,
                hint=f"{hint}; see {interface.show(class_interface.place)}",
            )
        if value is None or parameter.type is None or _is_open(value):
            continue
        type_ = read(parameter.type)
        if type_ is not None and fits(type_, value) is False:
            # The value itself is not shown: it may be a password.
            raise InvalidInputError(
                f"the parameter {key!r} of the class {name} must be"
                f" {one_line(' '.join(parameter.type.split()))},"
                f" and this {type_names[type(value)]} is not",
                where=where,
                hint=f"see {interface.show(class_interface.place)}",
            )


def _is_open(value: Json) -> bool:
    """Return whether the value has an unresolved `%{…}`."""
    if isinstance(value, str):
        return "%{" in value
    if isinstance(value, list):
        return any(map(_is_open, value))
    return isinstance(value, dict) and any(map(_is_open, value.values()))
