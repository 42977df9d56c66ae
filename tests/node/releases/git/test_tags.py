"""The content of tag objects."""

import pytest

from localpuppet.node.releases.git.git_names import judge
from localpuppet.node.releases.limits import MAX_TAG_SUBJECT

COMMIT = ("c" * 40, "commit", b"tree t\nauthor a <a> 1 +0000\n\nWork on ntp\n\nmore\n")
TREE = ("d" * 40, "tree", b"")
HEAD = f"object {COMMIT[0]}\ntype commit\ntag r1\ntagger a <a> 7 +0000\n\n".encode()


def subject(message: bytes) -> str:
    found = ("a" * 40, "tag", HEAD + message)
    return judge("r1", found[0], found, COMMIT, TREE, where="here").subject


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (b"ntp is faster\n\nand more\n", "ntp is faster"),
        (b"", ""),
        (b"-----BEGIN SSH SIGNATURE-----\nxx\n", ""),
        (b"a\x1b[31mred\xe2\x80\xae\xff\n", None),
        (b"x" * 10_000_000, "x" * MAX_TAG_SUBJECT),
    ],
)
def test_the_subject_of_a_tag_is_one_printable_line(message: bytes, shown: str | None) -> None:
    found = subject(message)
    assert found.isprintable()
    assert shown is None or found == shown


def test_without_a_tag_object_the_subject_is_that_of_the_commit() -> None:
    found = judge("r1", COMMIT[0], COMMIT, COMMIT, TREE, where="here")
    assert (found.subject, found.annotated) == ("Work on ntp", False)
