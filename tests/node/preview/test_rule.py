"""The incremental rule: a stored result is used only if nothing that it read has changed.

Programs, releases, captures and changes are random. A preview with the results of earlier ones
must equal fresh compiles of all nodes.
"""

import itertools
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import HealthCheck, given

from localpuppet.base.formats.values import Json
from localpuppet.node.preview.cache import request_of
from localpuppet.node.preview.difference import difference
from localpuppet.node.puppet.catalog import CatalogResource
from tests.doubles.compile_engine import (
    FakeCompileEngine,
    Program,
    ProgramError,
    RecordedRelease,
    resource,
    write_capture,
)
from tests.node.preview.rig import PreviewRig, captured, release_in, write_release
from tests.rigs.quick import examples

NODES = ("a.example.com", "b.example.com")
CODE = ("site.pp", "m/x.pp", "m/y.pp", "n/x.pp")
DATA = ("data/common.yaml", "data/a.example.com.yaml", "data/other.json", "m/x.yaml")
KEYS = ("k1", "k2", "lookup_options")
FACTS = ("role", "os")

_values = st.sampled_from(
    [
        *("1", "'1'", "01", "[1, 2]", "{a: 1}", "&x 2", "*x", "2020-01-01", "yes", ":sym"),
        *("!!str 3", "|"),
    ]
)
_lines = st.tuples(st.sampled_from([*KEYS, "other", "<<", "1", "~"]), _values)
_data = st.one_of(
    st.lists(_lines, max_size=4).map(
        lambda lines: "".join(f"{key}: {value}\n" for key, value in lines)
    ),
    st.sampled_from(["", "- a\n", "{", "k1: 1\n---\nk1: 2\n", '{"k1": 1, "k2": 1.0}']),
)
_code = st.sampled_from(["x", "y", "branch", "fail"])
_files = st.fixed_dictionaries(
    {}, optional={**dict.fromkeys(CODE, _code), **dict.fromkeys(DATA, _data)}
)
_steps = st.one_of(
    st.tuples(st.just("file"), st.sampled_from(CODE)),
    st.tuples(st.just("names"), st.sampled_from(["m", "data", "n"])),
    st.tuples(st.just("key"), st.sampled_from(DATA), st.sampled_from(KEYS)),
    st.tuples(st.just("fact"), st.sampled_from(["role", "os", "os.family", ""])),
    st.tuples(st.just("parameter"), st.sampled_from(["role", "top"])),
)
_programs = st.lists(st.tuples(_steps, _steps), min_size=1, max_size=5)
_facts = st.fixed_dictionaries(
    {"role": st.sampled_from(["web", "db"])},
    optional={"os": st.sampled_from([{"family": "a", "x": 1}, {"family": "b"}, "text", [1]])},
)
_captures = st.fixed_dictionaries(
    {"facts": _facts}, optional={"parameters": st.sampled_from([{"top": 1}, {"role": "x"}])}
)
_captures_of_nodes = st.fixed_dictionaries(dict.fromkeys(NODES, _captures))


def program(steps: list[tuple[tuple[str, ...], tuple[str, ...]]]) -> Program:
    """Return a program that reads what the steps say; some reads depend on others."""

    def run(view: RecordedRelease) -> Iterator[CatalogResource]:
        for number, (step, inner) in enumerate(steps):
            value = _step(view, step)
            if value == "fail":
                raise ProgramError(f"step {number} fails")
            if value in ("branch", "web", 1, None):
                value = [value, _step(view, inner)]
            yield resource("Notify", f"{number}", message=str(value))

    return run


def _step(view: RecordedRelease, step: tuple[str, ...]) -> Json:
    match step:
        case ("file", name):
            return view.read(name)
        case ("names", directory):
            return [*view.names(directory)]
        case ("key", file, key):
            return str(view.lookup(file, key))
        case ("fact", path):
            return view.fact(*path.split(".") if path else ())
    return view.parameter(step[1])


def brute_force(rig: PreviewRig, base: Path, head: Path) -> dict[str, str]:
    """Return the result of each node after compiling every node for both releases."""
    results = {}
    for node in captured(rig.nodes):
        sides = []
        for directory in (base, head):
            release = release_in(directory)
            request = request_of(node.load(), release.enc)
            (compiled,) = FakeCompileEngine(rig.program).compile(release, [request])
            sides.append(compiled)
        before, after = (side.catalog for side in sides)
        if before is None or after is None:
            results[node.name] = "fails"
        else:
            results[node.name] = "changes" if difference(before, after) else "stays"
    return results


def incremental(rig: PreviewRig, base: Path, head: Path) -> dict[str, str]:
    result = rig.preview(base, head)
    return {
        **dict.fromkeys(NODES, "stays"),
        **{node: "changes" for group in result.groups for node in group.nodes},
        **{failure.node: "fails" for failure in result.failures},
    }


def _write_captures(rig: PreviewRig, captures: Mapping[str, Mapping[str, Json]]) -> None:
    for node, capture in captures.items():
        write_capture(rig.nodes, node, **json.loads(json.dumps(capture)))


@examples(80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=_programs,
    releases=st.lists(_files, min_size=2, max_size=4),
    captures=st.lists(_captures_of_nodes, min_size=1, max_size=2),
)
def test_a_preview_with_stored_results_equals_fresh_compiles(
    tmp_path: Path,
    steps: list[tuple[tuple[str, ...], tuple[str, ...]]],
    releases: list[dict[str, str]],
    captures: list[dict[str, dict[str, Json]]],
) -> None:
    shutil.rmtree(tmp_path)
    rig = PreviewRig(tmp_path, program(steps))
    places = [
        write_release(tmp_path / f"r{number}", files) for number, files in enumerate(releases)
    ]
    for nodes in captures:
        _write_captures(rig, nodes)
        for base, head in itertools.pairwise(places):
            assert incremental(rig, base, head) == brute_force(rig, base, head)
        assert incremental(rig, places[0], places[-1]) == brute_force(rig, places[0], places[-1])
