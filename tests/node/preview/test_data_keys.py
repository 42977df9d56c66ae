"""Root keys of data files: equal digests mean equal answers of Puppet."""

import json
import subprocess
from collections.abc import Iterator

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from localpuppet.node.preview import release_index
from localpuppet.node.preview.preview_limits import MAX_DATA_FILE
from localpuppet.node.preview.release_index import key_digests

RUBY = """
require 'puppet'; require 'json'
$stdin.each_line do |line|
  begin
    value = Puppet::Util::Yaml.safe_load(JSON.parse(line)[0], [Symbol])
    pairs = value.to_h { |k, v| [k.to_s, [k.class, v].inspect] } if value.is_a?(Hash)
    puts JSON.generate([pairs])
  rescue StandardError, SyntaxError => error
    puts JSON.generate([nil])
  end
  $stdout.flush
end
"""


def keys(text: str, name: str = "a.yaml") -> dict[str, str] | None:
    digests = key_digests(name, text.encode())
    return None if digests is None else dict(digests)


@pytest.mark.parametrize(
    ("name", "before", "after", "changed"),
    [
        ("a.yaml", "a: 1\nb: {c: [1, 2]}\n", "b: {c: [1, 3]}\na: 1\nd: 1\n", ["b"]),
        ("a.json", '{"a": 1, "b": 1.0}', '{"b": 1, "a": 1}', ["b"]),
        # A changed anchor changes the keys with its aliases.
        (
            "a.yaml",
            "a: &x {q: 1}\nb: *x\nc: {<<: *x}\nd: 1\n",
            "a: &x {q: 2}\nb: *x\nc: {<<: *x}\nd: 1\n",
            ["a", "b", "c"],
        ),
    ],
)
def test_only_changed_keys_differ(name: str, before: str, after: str, changed: list[str]) -> None:
    first, second = keys(before, name), keys(after, name)
    assert first is not None
    assert second is not None
    assert [key for key in first if first[key] != second[key]] == changed


@pytest.mark.parametrize(
    ("one", "other"),
    [("1", "'1'"), ("01", "1"), ("true", "'true'"), ("[a, b]", "[[a], b]"), ("{a: b}", "[a, b]")],
)
def test_another_notation_of_a_value_changes_the_digest(one: str, other: str) -> None:
    assert keys(f"a: {one}\n") != keys(f"a: {other}\n")


@pytest.mark.parametrize(
    "text",
    [
        *("", "- a\n", "a: 1\na: 2\n", "1: a\n", "yes: a\n", ":a: b\n", "a: :b\n", "~: 1\n"),
        *("a: 2020-01-01\n", "a: {b: 2020-01-01 10:00:00}\n", "a: !!str 1\n", "a: {true: b}\n"),
        *("<<: {a: 1}\n", "a: *missing\n", "a: &x [*x]\n", "a: 1\n---\nb: 1\n", "a: {b\n"),
        *("a: {1: b}\n", "a: !ruby/object:X {}\n"),
        # An alias means the last anchor of its name for Ruby, also one of a key.
        *("a: &x 1\n&x b: 2\nc: *x\n", "&x b: 2\nc: *x\n", "a: &x [&x 1]\nc: *x\n"),
        *("a: &x {b: &x 1}\nc: *x\n", "a: [&x 1, &x 2]\nc: *x\n", "a: {&x b: &x 1}\nc: *x\n"),
    ],
)
def test_ambiguous_files_have_no_digests_by_key(text: str) -> None:
    assert keys(text) is None


def test_large_and_foreign_files_have_no_digests_by_key() -> None:
    for text in ("[1]", '{"a": 1, "a": 2}', '{"<<": {"a": 1}}', '{"a": NaN}', "{", "[" * 100_000):
        assert keys(text, "a.json") is None
    # Ruby rejects a deep file, whatever the key.
    assert keys(f'{{"a": 1, "b": {"[" * 100}{"]" * 100}}}', "a.json") is None
    assert key_digests("a.yaml", b"a: " + b"x" * MAX_DATA_FILE) is None
    assert key_digests("a.conf", b"a: 1") is None
    assert key_digests("a.yaml", b"a: \xff") is None
    assert key_digests("a.yaml", "a: 1\n".encode("utf-16")) is None  # Puppet rejects it


_scalars = st.sampled_from(
    [
        *("1", "'1'", "01", "0x1", "1_0", "1.0", "1e3", "~", "yes", "text", ":sym", "2020-01-01"),
        *("12:30:00", "&x 1", "*x", "|-\n    1", "!!int 1", '"\\u00e9"', "=", ".inf", "'%{x}'"),
        *("[&x w, *x]", "{&x k: &y v}", "&x {k: &x v}"),
    ]
)
_lines = st.tuples(
    st.sampled_from(["a", "b", "c", "'b'", "1", "<<", "yes", ":b", "&x d", "&x 'e'"]), _scalars
)
_texts = st.lists(_lines, max_size=4).map(
    lambda lines: "".join(f"{key}: {value}\n" for key, value in lines)
)


@pytest.fixture(scope="module")
def ruby(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[subprocess.Popen[str]]":
    script = tmp_path_factory.mktemp("ruby") / "read.rb"
    script.write_text(RUBY)
    pipe = subprocess.PIPE
    with subprocess.Popen(["ruby", str(script)], stdin=pipe, stdout=pipe, text=True) as process:
        yield process


@pytest.mark.puppet
@settings(max_examples=300)
@given(one=_texts, other=_texts)
def test_equal_digests_are_equal_values(
    ruby: "subprocess.Popen[str]", one: str, other: str
) -> None:
    first, second = keys(one), keys(other)
    if first is None or second is None:
        return
    values = []
    assert ruby.stdin
    assert ruby.stdout
    for text in (one, other):
        ruby.stdin.write(json.dumps([text]) + "\n")
        ruby.stdin.flush()
        values.append(json.loads(ruby.stdout.readline())[0])
    assert None not in values, "Ruby rejects a file whose keys are compared"
    for key in first.keys() & second.keys():
        if first[key] == second[key]:
            assert values[0][key] == values[1][key]


@pytest.mark.parametrize("name", ["a.json", "a.yaml"])
def test_a_file_with_many_values_counts_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release_index, "MAX_DATA_VALUES", 1000)
    values = ",".join(["1"] * 900)
    assert keys(f'{{"a": [{values}]}}', name) is not None
    assert keys(f'{{"a": [{values}, {values}]}}', name) is None
