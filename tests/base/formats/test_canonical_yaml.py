"""The quick reader of localpuppet's own YAML agrees with the strict one, or leaves text to it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats import canonical_yaml, strict_yaml
from localpuppet.base.formats.documents import Documents
from localpuppet.node.enc.input import read_enc
from localpuppet.node.releases.manifest import ReleaseFiles, to_text

MANIFEST = """modulepath:
  - "dist/tags/r7"
  - "more/tags/v1"
modules:
  # why
  ntp:
    git: "https://git.example.net/ntp.git"
    tag: "v1"
"""


class Nothing(Documents):
    """Fail if the test uses the strict reader."""

    def __init__(self) -> None:
        super().__init__(None)

    def parse(self, data: bytes, **_arguments: object) -> dict[str, object]:  # type: ignore[override]
        raise AssertionError(data)


def lock(**more: str) -> str:
    pin = {
        "url": '"https://git.example.net/ntp.git"',
        "tag": '"v1"',
        "tag_object": f'"{"a" * 40}"',
        "commit": f'"{"b" * 40}"',
        "tree_sha256": f'"{"c" * 64}"',
        **more,
    }
    lines = [f"    {key}: {value}" for key, value in pin.items()]
    head = "# Written by 'localpuppet release lock'; commit it beside manifest.yaml."
    return "\n".join([head, "version: 1", "modules:", "  ntp:", *lines]) + "\n"


def files(documents: Documents) -> ReleaseFiles:
    return ReleaseFiles(documents=documents, allow_file=False, read_enc=read_enc)


def test_files_as_localpuppet_writes_them_need_no_yaml_reader() -> None:
    found = files(Nothing()).parse_manifest(MANIFEST.encode(), "m")
    assert found.modulepath == ("dist/tags/r7", "more/tags/v1")
    assert found.modules["ntp"].fields["tag"] == "v1"
    pins = files(Nothing()).parse_lock(lock().encode(), "l")
    assert pins.to_dict()["modules"]["ntp"]["commit"] == "b" * 40
    assert to_text(pins) == lock()


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (lock(extra='"x"'), "unknown key 'extra'"),
        (lock(commit='"abc"'), "invalid id"),
        (lock(tag='"v1"\n    tag: "v2"'), "duplicate key 'tag'"),
        (lock().replace("version: 1", "version: 2"), "version 2 is not known"),
        (lock().replace('    tag: "v1"\n', ""), "'tag' is missing"),
        (lock(tag="7"), "must be a string"),
        ("version: 1\nmodules: []\n", "must be a mapping"),
    ],
)
def test_the_strict_reader_reports_errors(text: str, what: str) -> None:
    with pytest.raises(InvalidInputError, match=what):
        files(Documents(None)).parse_lock(text.encode(), "l")


def test_the_strict_reader_reads_the_same_document_in_another_form() -> None:
    text = "modules: {ntp: {tag: v1, git: 'https://git.example.net/ntp.git'}}\n"
    found = files(Documents(None)).parse_manifest(text.encode(), "m")
    assert found.modules["ntp"].fields["tag"] == "v1"


REST = (
    *("a:", 'b: "x"', 'a: "\\""', "c: 12", "c: 012", '- "x"', '- "y"', "d: {}", "# c", "", "-"),
    *('e: "\\\\"', "a: x", 'a: "é"', "1: 1", 'f.g/h+-_: ""', "- 1", "a:  1", "no: 1", "#\x0ca: 1"),
)
LINES = st.lists(
    st.tuples(st.sampled_from(["", "  ", "    ", " "]), st.sampled_from(REST)), max_size=8
)


@given(LINES)
def test_both_readers_return_equal_values(lines: list[tuple[str, str]]) -> None:
    text = "".join(f"{indent}{rest}\n" for indent, rest in lines)
    mine = canonical_yaml.read(text)
    try:
        strict = strict_yaml.parse(text.encode(), where="x")
    except InvalidInputError:
        return  # written again, it is another text
    if mine is not None and None not in _leaves(strict):
        assert mine == strict


def _leaves(value: object) -> list[object]:
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in _leaves(item)]
    if isinstance(value, list):
        return [leaf for item in value for leaf in _leaves(item)]
    return [value]
