"""Mutations of control repositories, and a proof that a preview misses none of their effects.

    proof = MutationProof.open(repository, nodes, scratch)
    for number in range(60):
        step = proof.step(random.Random(number))

Each step changes the release of the step before it. Every node is compiled with the result, and the
catalog that the cache would have given is compared with that.
"""

import hashlib
import random
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from localpuppet.base.errors import LocalpuppetError
from localpuppet.node.app import NodeApp
from localpuppet.node.preview.cache import (
    CacheFiller,
    CacheSearch,
    CompileOutcome,
    NodeCompile,
    PreviewCache,
    PreviewSide,
)
from localpuppet.node.preview.compile_request import CompileEngine, CompileRequest, CompileResult
from localpuppet.node.preview.difference import difference
from localpuppet.node.preview.node_capture import CapturedNode
from localpuppet.node.preview.release_index import METADATA
from localpuppet.node.preview.result import PreviewRevision
from localpuppet.node.preview.workspace import PreviewWorkspace, RevisionTree
from localpuppet.node.releases.release import Release

# Category of a file → the pattern of its name; the first that fits counts.
CATEGORIES = {
    "environment.conf": re.compile(r"environment\.conf|manifest\.yaml"),
    "enc.yaml": re.compile(r"enc\.yaml"),
    "hiera.yaml": re.compile(r"(?:.*/)?hiera\.yaml"),
    "fact": re.compile(r".*(?:lib/facter|facts\.d)/.+"),
    "custom type": re.compile(r".*lib/puppet/(?:type|provider)/.+"),
    "function": re.compile(r"(?:.*/)?(?:functions/.+\.(?:pp|rb)|lib/puppet_x/.+)"),
    "type alias": re.compile(r"(?:.*/)?types/.+\.pp"),
    "template": re.compile(r".*\.(?:erb|epp)"),
    "manifest": re.compile(r".*\.pp"),
    "data": re.compile(r".*\.(?:yaml|yml|json)"),
    "file": re.compile(r".*/files/.+"),
}
OPERATIONS = ("edit", "add", "delete", "rename")
_KEEP = ("manifest.lock",)
# How often a mutation after which a node fails is undone.
_KEEP_SOUND = 0.9
_WORD = re.compile(r"\b\d+\b|'[^'\n]*'|\b[a-z]{3,}\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """A change of a release: `edit`, `add`, `delete` or `rename` of a file of a category."""

    operation: str
    category: str
    name: str

    def __str__(self) -> str:
        return f"{self.operation} {self.category}: {self.name}"


def category_of(name: str) -> str:
    """Return the category of a file, or empty."""
    return next((kind for kind, form in CATEGORIES.items() if form.fullmatch(name)), "")


def mutate(top: Path, chance: random.Random, absent: Sequence[str]) -> Mutation:
    """Change a release."""
    names = sorted(
        str(path.relative_to(top))
        for path in top.rglob("*")
        if path.is_file() and not path.is_symlink() and path.name not in _KEEP
    )
    by_category: dict[str, list[str]] = {}
    for name in names:
        by_category.setdefault(category_of(name), []).append(name)
    by_category.pop("", None)
    if chance.random() < 0.06:
        return _new_version(top, names, chance)
    category = chance.choice(sorted(by_category))
    operation = chance.choices(OPERATIONS, weights=[5, 3, 2, 1])[0]
    if category == "environment.conf":
        operation = "edit"
    name = chance.choice(by_category[category])
    path = top / name
    if operation == "edit":
        _edit(path, chance)
    elif operation == "delete":
        path.unlink()
    elif operation == "rename":
        new = path.with_name(f"{path.stem}x{path.suffix}")
        new = chance.choice([new, top / chance.choice(names)]) if chance.random() < 0.5 else new
        path.rename(new)
    else:
        fitting = [
            new for new in absent if category_of(new) == category and not (top / new).exists()
        ]
        name = chance.choice(fitting) if fitting and chance.random() < 0.8 else _beside(name)
        _add(top, name, by_category[category], chance)
    return Mutation(operation=operation, category=category, name=name)


def _beside(name: str) -> str:
    stem, _, suffix = name.rpartition(".")
    return f"{stem}_new.{suffix}"


def _edit(path: Path, chance: random.Random) -> None:
    """Change a line of a text: a number, a word, the whole line."""
    lines = path.read_text("utf-8", "replace").split("\n")
    place = chance.randrange(len(lines))
    words = [*_WORD.finditer(lines[place])]
    kind = chance.choice(["word", "word", "word", "delete", "double", "comment", "swap", "append"])
    if kind == "word" and words:
        match = chance.choice(words)
        word = match.group()
        new = str(int(word) + 1) if word.isdigit() else _other(word, chance)
        lines[place] = lines[place][: match.start()] + new + lines[place][match.end() :]
    elif kind == "delete":
        del lines[place]
    elif kind == "double":
        lines.insert(place, lines[place])
    elif kind == "comment" and path.suffix != ".json":
        lines.insert(place, "# a comment")
    elif kind == "swap":
        other = chance.randrange(len(lines))
        lines[place], lines[other] = lines[other], lines[place]
    else:
        lines.append(_appended(path, chance))
    path.write_text("\n".join(lines))


def _other(word: str, chance: random.Random) -> str:
    return (
        f"'{word[1:-1]}x'" if word.startswith("'") else chance.choice([f"{word}x", "true", "web"])
    )


def _appended(path: Path, chance: random.Random) -> str:
    if path.suffix in (".yaml", ".yml"):
        key = chance.choice(["unused", "motd", "company", "profile::web::port", "httpd::status"])
        return f"{key}: {chance.choice(['1', 'text', '[a, b]', '2020-01-01', '{a: 1}'])}"
    return " "


def _add(top: Path, name: str, others: Sequence[str], chance: random.Random) -> None:
    """Write a file: what one of its category has, or code of its name."""
    path = top / name
    path.parent.mkdir(parents=True, exist_ok=True)
    stem = path.stem
    module = path.parts[-3] if len(path.parts) > 2 else stem
    class_name = module if stem == "init" else f"{module}::{stem}"
    texts = {
        "manifests": f"class {class_name} {{ notify {{ 'n': }} }}\n",
        "types": f"type {module.capitalize()}::{stem.capitalize()} = Any\n",
        "functions": f"function {module}::{stem}($x = 1) {{ $x }}\n",
    }
    own = texts.get(path.parent.name) if path.suffix == ".pp" else None
    if path.suffix in (".yaml", ".yml"):
        own = f"motd: added\nprofile::web::port: {chance.randrange(1, 9000)}\nhttpd::status: true\n"
    copied = (top / chance.choice([*others])).read_text("utf-8", "replace")
    if path.exists() or path.is_dir():
        return
    path.write_text(own if own and chance.random() < 0.8 else copied)


def _new_version(top: Path, names: Sequence[str], chance: random.Random) -> Mutation:
    """Change a module as a new version does: its metadata, and some of its files."""
    metadata = [name for name in names if name.endswith("metadata.json")]
    if not metadata:
        name = chance.choice([*names])
        _edit(top / name, chance)
        return Mutation(operation="edit", category=category_of(name), name=name)
    name = chance.choice(metadata)
    path = top / name
    path.write_text(re.sub(r'("version": "\d+\.)(\d+)', r"\g<1>7", path.read_text()))
    inner = [other for other in names if other.startswith(name.removesuffix("metadata.json"))]
    for other in chance.sample(inner, min(3, len(inner))):
        if category_of(other) and not other.endswith(".json"):
            _edit(top / other, chance)
    return Mutation(operation="new version", category="module", name=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofStep:
    """What mutations did."""

    mutations: tuple[Mutation, ...]
    nodes: int = 0  # how many nodes there are
    changed: tuple[str, ...] = ()  # those whose catalogs differ, with every node compiled
    missed: tuple[str, ...] = ()  # nodes whose stored catalog is wrong
    # nodes that were compiled again, with the same result → what differed
    needless: Mapping[str, str] = field(default_factory=dict)
    invalid: str = ""  # why the release cannot be used at all; empty for most


@dataclass(eq=False, kw_only=True)
class MutationProof:
    """Mutates a control repository step by step."""

    workspace: PreviewWorkspace  # makes releases
    engine: CompileEngine  # compiles
    cache: PreviewCache
    nodes: Sequence[CapturedNode]
    places: Path  # the directory of releases
    current: Path
    _fresh: "_Compiles" = field(default_factory=dict)
    _absent: list[str] = field(default_factory=list)
    _number: int = 0

    @classmethod
    @contextmanager
    def open(
        cls, repository: Path, nodes: Path, scratch: Path, *, root: Path
    ) -> "Iterator[MutationProof]":
        """Yield a proof whose first release is compiled."""
        node = NodeApp(str(root))
        workspace = node.preview()
        places = scratch / "releases"
        places.mkdir(parents=True)
        first = places / _name(0)
        shutil.copytree(repository, first, symlinks=True, ignore=shutil.ignore_patterns(".git"))
        if not (first / "manifest.yaml").exists():
            (first / "manifest.yaml").write_text("moduledir: modules\n")
        with workspace.cache(scratch / "cache") as cache:
            proof = cls(
                workspace=workspace,
                engine=workspace.engine_for(scratch / "cache"),
                cache=cache,
                nodes=workspace.nodes(nodes, cache),
                places=places,
                current=first,
            )
            proof.compile_all(proof.side(first))
            yield proof

    def side(self, directory: Path) -> PreviewSide:
        """Return a release."""
        revision = PreviewRevision(name=directory.name[-6:])
        tree = RevisionTree(revision=revision, directory=directory, key="")
        side = self.workspace.side(tree, self.cache)
        return PreviewSide(revision=revision, release=side.release, index=side.index)

    def compile_all(self, side: PreviewSide) -> "_Compiles":
        """Compile every node, and store the results."""
        filler = CacheFiller(cache=self.cache, engine=_Recorded(self.engine, self._absent))
        self._absent.clear()
        self._fresh = {
            compiled.node: (compiled, outcome)
            for compiled, outcome in filler.compile(side, self.nodes)
        }
        return self._fresh

    def step(self, chance: random.Random, *, count: int = 1) -> ProofStep:
        """Mutate the release, and compare what the cache has with fresh compiles."""
        self._number += 1
        new = self.places / _name(self._number)
        shutil.copytree(self.current, new, symlinks=True)
        absent = sorted({*self._absent})
        mutations = tuple(mutate(new, chance, absent) for _ in range(count))
        try:
            side = self.side(new)
        except LocalpuppetError as error:
            shutil.rmtree(new)
            return ProofStep(mutations=mutations, invalid=str(error))
        before = self._fresh
        search = CacheSearch(self.cache, [side])
        hits: dict[str, CompileOutcome] = {}
        reasons: dict[str, str] = {}
        for node, (answer,) in zip(self.nodes, search.find(self.nodes), strict=True):
            if isinstance(answer, CompileOutcome):
                hits[node.name] = answer
            else:
                reasons[node.name] = answer
        fresh = self.compile_all(side)
        changed = _differing(before, fresh)
        result = ProofStep(
            mutations=mutations,
            nodes=len(self.nodes),
            changed=changed,
            missed=tuple(
                sorted(
                    node for node, stored in hits.items() if not self._same(stored, fresh[node][1])
                )
            ),
            needless={node: reasons[node] for node in sorted(reasons.keys() - {*changed})},
        )
        fails = [node for node, (compiled, _) in fresh.items() if compiled.catalog is None]
        if fails and chance.random() < _KEEP_SOUND:
            # A release in which little compiles has little to miss.
            shutil.rmtree(new)
            self._fresh = before
        else:
            shutil.rmtree(self.current)
            self.current = new
        return result

    def _same(self, stored: CompileOutcome, fresh: CompileOutcome) -> bool:
        if stored.catalog is None or fresh.catalog is None:
            return stored.catalog == fresh.catalog
        if stored.catalog == fresh.catalog:
            return True
        return not difference(*self.cache.catalogs.differing(stored.catalog, fresh.catalog))


@dataclass(eq=False)
class _Recorded:
    """An engine that notes where its compiles looked for files and found none.

    Metadata of modules are noted in any case.
    """

    engine: CompileEngine
    absent: list[str]

    def compile(
        self, release: Release, requests: Iterable[CompileRequest]
    ) -> Iterator[CompileResult]:
        for result in self.engine.compile(release, requests):
            self.absent += result.reads.absent
            self.absent += (name for name in result.reads.keys if name.endswith(METADATA))
            yield result


_Compiles = dict[str, tuple[NodeCompile, CompileOutcome]]


def _differing(before: _Compiles, after: _Compiles) -> tuple[str, ...]:
    nodes = []
    for node, (second, _) in after.items():
        first, _ = before[node]
        if first.catalog is None or second.catalog is None:
            if (first.catalog, first.failure) != (second.catalog, second.failure):
                nodes.append(node)
        elif difference(first.catalog, second.catalog):
            nodes.append(node)
    return tuple(sorted(nodes))


def _name(number: int) -> str:
    return hashlib.sha1(str(number).encode()).hexdigest()  # noqa: S324 - only a name
