"""A compile engine whose programs are Python functions; it records what they read."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from localpuppet.base.formats.values import Json
from localpuppet.node.preview.compile_request import (
    CompileFailure,
    CompileRequest,
    CompileResult,
    FactPath,
    RawReads,
)
from localpuppet.node.puppet.catalog import CanonicalCatalog, CatalogEdge, CatalogResource
from localpuppet.node.releases.release import Release


class ProgramError(Exception):
    """The program of a node fails, as a manifest may."""


@dataclass(eq=False)
class RecordedRelease:
    """A release and a request, whose reads are recorded."""

    top: Path
    request: CompileRequest
    files: set[str] = field(default_factory=set)
    absent: set[str] = field(default_factory=set)
    listed: set[str] = field(default_factory=set)
    keys: dict[str, set[str]] = field(default_factory=dict)
    facts: set[FactPath] = field(default_factory=set)
    parameters: set[str] = field(default_factory=set)
    impure: set[str] = field(default_factory=set)

    def read(self, name: str) -> str | None:
        path = self.top / name
        if not path.is_file():
            self.absent.add(name)
            return None
        self.files.add(name)
        return path.read_text()

    def names(self, directory: str) -> list[str]:
        path = self.top / directory
        if not path.is_dir():
            self.absent.add(directory)
            return []
        self.listed.add(directory)
        return sorted(inner.name for inner in path.iterdir())

    def lookup(self, file: str, key: str) -> Json:
        path = self.top / file
        if not path.is_file():
            self.absent.add(file)
            return None
        self.keys.setdefault(file, set()).add(key)
        try:
            values = yaml.safe_load(path.read_text())
        except yaml.YAMLError as error:
            raise ProgramError(str(error)) from error
        if not isinstance(values, dict):
            raise ProgramError(f"{file} is not a mapping")
        value: Json = values.get(key)
        return value

    def fact(self, *path: str) -> Json:
        self.facts.add(path)
        value: Any = self.request.facts
        for key in path:
            if not isinstance(value, dict) or key not in value:
                return None
            value = value[key]
        result: Json = value
        return result

    def parameter(self, name: str) -> Json:
        self.parameters.add(name)
        return self.request.parameters.get(name, self.request.facts.get(name))

    def reads(self) -> RawReads:
        return RawReads(
            files=tuple(sorted(self.files)),
            absent=tuple(sorted(self.absent)),
            listed=tuple(sorted(self.listed)),
            keys={file: tuple(sorted(keys)) for file, keys in self.keys.items()},
            facts=tuple(sorted(self.facts)),
            parameters=tuple(sorted(self.parameters)),
            impure=tuple(sorted(self.impure)),
        )


Program = Callable[[RecordedRelease], Iterable[CatalogResource]]


@dataclass(eq=False)
class FakeCompileEngine:
    """Runs a program for each node."""

    program: Program  # returns the resources of a catalog
    # the nodes that were compiled, in their order
    compiled: list[str] = field(default_factory=list)

    def compile(
        self, release: Release, requests: Iterable[CompileRequest]
    ) -> Iterator[CompileResult]:
        for request in requests:
            self.compiled.append(request.node)
            view = RecordedRelease(release.directory, request)
            catalog, failure = None, None
            try:
                catalog = catalog_with(request.node, self.program(view))
            except ProgramError as error:
                failure = CompileFailure(message=str(error), file="manifests/site.pp", line=1)
            yield CompileResult(
                node=request.node, catalog=catalog, failure=failure, reads=view.reads()
            )


def resource(type_: str, title: str, **parameters: Json) -> CatalogResource:
    return CatalogResource(
        type=type_,
        title=title,
        exported=False,
        file="manifests/site.pp",
        line=1,
        tags=("class", type_.lower()),
        parameters=parameters,
    )


def catalog_with(node: str, resources: Iterable[CatalogResource]) -> CanonicalCatalog:
    listed = tuple(sorted(resources, key=lambda item: item.reference))
    return CanonicalCatalog(
        certname=node,
        environment="production",
        classes=("main",),
        resources=listed,
        edges=tuple(
            sorted(
                CatalogEdge("Class", "Main", item.type, item.title, "contains") for item in listed
            )
        ),
    )


def write_capture(directory: Path, node: str, facts: dict[str, Json], **more: Json) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{node}.json").write_text(json.dumps({"facts": facts, **more}))
