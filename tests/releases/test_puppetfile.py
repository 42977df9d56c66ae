"""The grammar of Puppetfiles, and which tag a ref is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localpuppet.errors import InvalidInputError
from localpuppet.releases.puppetfile import Module, choose, parse
from tests.rigs.limited import limited

URL = "https://git.example.net/ntp.git"


def one(text: str) -> Module:
    (module,) = parse(text, allow_file=False)
    return module


@pytest.mark.parametrize(
    "text",
    [
        f"mod 'ntp', :git => '{URL}', :tag => 'v1'",
        f"mod 'ntp', git: '{URL}', tag: 'v1'",
        f'mod "ntp", :git => "{URL}", :tag => "v1"',
        f"mod 'puppetlabs/ntp', :git => '{URL}', :tag => 'v1'",
        f"mod 'puppetlabs-ntp', :git => '{URL}', :tag => 'v1'",
        f"mod 'ntp',\n  :git => '{URL}',\n  :tag => 'v1'\n",
        f"mod 'ntp',\n\n  # why\n  :git => '{URL}', # where\n  :tag =>\n    'v1',\n",
        f"mod 'ntp', :tag => 'v1', :git => '{URL}',",
        f"mod 'ntp',:git=>'{URL}',:tag=>'v1'",
        f"mod 'ntp',\r\n  git:'{URL}',\r\n\ttag: 'v1'\r\n",
        f"forge 'https://forgeapi.puppet.com'\nmoduledir 'ext'\n# all\nmod 'ntp',\n"
        f"  :git => '{URL}',\n  :tag => 'v1',\nmoduledir 'x' # again",
    ],
)
def test_one_module_in_many_forms(text: str) -> None:
    module = one(text)
    assert (module.name, module.url, module.kind, module.ref) == ("ntp", URL, "tag", "v1")


@pytest.mark.parametrize("kind", ["tag", "ref", "commit", "branch"])
def test_each_kind_of_ref(kind: str) -> None:
    module = one(f"\n\nmod 'ntp', git: '{URL}', {kind}: 'x1'")
    assert (module.kind, module.ref, module.line) == (kind, "x1", 3)


def test_order_is_kept_and_nothing_is_fine() -> None:
    text = f"mod 'b', git: '{URL}', tag: 'v1'\nmod 'a', git: '{URL}'\n"
    assert [(module.name, module.kind) for module in parse(text, allow_file=False)] == [
        ("b", "tag"),
        ("a", "default branch"),
    ]
    assert parse("# nothing\n", allow_file=False) == ()


def test_quotes_are_undone() -> None:
    assert one(rf"mod 'ntp', git: '{URL}', ref: 'it\'s \\ \n'").ref == "it's \\ \\n"
    assert one(rf'mod "ntp", git: "{URL}", ref: "a\"#b"').ref == 'a"#b'


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("version = 'v1'", "more than a list"),
        ("if true", "more than a list"),
        ("end", "more than a list"),
        ("require 'yaml'", "more than a list"),
        ("$x", "more than a list"),
        ("`id`", "more than a list"),
        ("forge.baseUrl 'https://x'", "string in quotes"),
        ("mod('ntp', git: 'x')", "string in quotes"),
        ("mod ntp", "string in quotes"),
        ("mod 'ntp', git: url", "string in quotes"),
        (f"mod 'ntp', git: '{URL}', tag: :latest", "string in quotes"),
        (f"mod 'ntp', git: '{URL}' if true", "more than a list"),
        (f"mod 'ntp', :git, '{URL}'", "more than a list"),
        (f"mod 'ntp', git: '{URL}', forge 'x'", "more than a list"),
        (f"mod 'ntp', git: '{URL}' + 'x'", "more than a list"),
        (f"mod 'ntp', git: '{URL}', tag: 'v1", 'string in quotes, not "\'v1"'),
        (f"mod 'ntp', git: '{URL}', tag: \"v#{{1}}\"", "interpolation"),
        (f"mod 'ntp', git: '{URL}', tag: \"v#$x\"", "interpolation"),
        (f"mod 'ntp', git: '{URL}', tag: \"v\\t\"", "interpolation or escape"),
        ("mod 'puppetlabs/ntp', '9.0.0'", "module of the forge"),
        ("mod 'puppetlabs/ntp', :latest", "more than a list"),
        ("mod 'puppetlabs/ntp'", "module of the forge"),
        ("mod 'ntp', :svn => 'https://x'", "'svn' of 'ntp' cannot be imported"),
        (f"mod 'ntp', git: '{URL}', install_path: 'x'", "'install_path' of 'ntp'"),
        (f"mod 'ntp', git: '{URL}', tag: 'v1', branch: 'b'", "has both 'tag' and 'branch'"),
        (f"mod 'ntp', git: '{URL}', tag: 'v1', tag: 'v2'", "there twice"),
        (f"mod 'ntp', git: '{URL}', tag: '-v1'", "starts with '-'"),
        ("mod 'ntp', git: 'http://git.example.net/x'", "not allowed"),
        ("mod 'ntp', git: 'file:///srv/x'", "not allowed"),
        (f"mod 'NTP', git: '{URL}'", "invalid module name"),
        (f"mod 'a/b/c', git: '{URL}'", "invalid module name"),
        ("moduledir", "string in quotes"),
        ("moduledir 'a', 'b'", "more than a list"),
        ("\ufeff", "more than a list"),
    ],
)
def test_what_is_no_data_is_refused_with_its_line(line: str, what: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse(f"# first\n{line}\n", allow_file=False)
    assert caught.value.where == "line 2"
    assert what in str(caught.value)


def test_a_module_twice_is_refused() -> None:
    text = f"mod 'ntp', git: '{URL}', tag: 'v1'\nmod 'x/ntp', git: '{URL}', tag: 'v2'\n"
    with pytest.raises(InvalidInputError, match="there twice") as caught:
        parse(text, allow_file=False)
    assert caught.value.hint.startswith("the first is in line 1")


PIECES = st.sampled_from(
    [
        *("mod ", "'ntp'", '"x"', ",", ":git", "git:", " => ", "\n", "#", "'", '"', "\\", "'v1'"),
        *(f"'{URL}'", "forge", "moduledir", " ", "é", "\0", "\u2028", "::", "=>", "ref:", "\r"),
    ]
)


@given(st.one_of(st.text(), st.lists(PIECES, max_size=24).map("".join)))
def test_it_parses_or_refuses_and_nothing_else(text: str) -> None:
    try:
        modules = parse(text, allow_file=False)
    except InvalidInputError as error:
        assert error.where.startswith("line ")
    else:
        assert len({module.name for module in modules}) == len(modules)


A, B = "a" * 40, "b" * 40
REFS = {
    "HEAD": A,
    "refs/heads/main": A,
    "refs/heads/v1.2.0": B,
    "refs/tags/v1.2.0": A,
    "refs/tags/v1.10.0": A,
    "refs/tags/stable": A,
    "refs/tags/-odd": A,
    "refs/tags/v0.9": B,
}
TAGS_OF_A = ("v1.10.0", "v1.2.0", "stable")


@pytest.mark.parametrize(
    ("option", "tag", "commit", "tags"),
    [
        (", tag: 'v7'", "v7", "", ()),
        (", ref: 'v1.2.0'", "v1.2.0", A, ()),
        (", ref: 'main'", None, A, TAGS_OF_A),
        (", ref: 'origin/main'", None, A, TAGS_OF_A),
        (f", ref: '{B}'", None, B, ("v0.9",)),
        (f", commit: '{B[:7]}'", None, B, ("v0.9",)),
        (f", commit: '{'c' * 40}'", None, "c" * 40, ()),
        (", commit: 'ccccccc'", None, "", ()),
        (", commit: 'main'", None, "", ()),
        (", branch: 'v1.2.0'", None, B, ("v0.9",)),
        (", branch: 'gone'", None, "", ()),
        (f", branch: '{B}'", None, "", ()),
        ("", None, A, TAGS_OF_A),
    ],
)
def test_the_tag_that_a_ref_is(
    option: str, tag: str | None, commit: str, tags: tuple[str, ...]
) -> None:
    choice = choose(one(f"mod 'ntp', git: '{URL}'{option}"), REFS)
    assert (choice.tag, choice.commit, choice.tags) == (tag, commit, tags)


@pytest.mark.parametrize(
    "text",
    [
        "mod '{long}', :git => 'https://example.com/a.git', :tag => 'r1'",
        "mod 'a', :git => 'https://example.com/{long}', :tag => 'r1'",
        "mod 'a', :git => 'https://example.com/a.git', :tag => 'v1', '{long}'",
        "mod '{escapes}'",
        'mod "{escapes}"',
        "mod '{long}",
        "forge '{long}'",
    ],
)
def test_a_long_string_is_refused_in_one_line(text: str) -> None:
    done = limited(
        "from localpuppet.errors import InvalidInputError\n"
        "from localpuppet.releases.puppetfile import parse\n"
        f"text = {text!r}.replace('{{long}}', 'x' * 1_000_000)\n"
        "text = text.replace('{escapes}', '\\\\\\\\' * 500_000)\n"
        "try: parse(text, allow_file=False)\n"
        "except InvalidInputError as error: print(error)\n"
    )
    assert done.code == 0, done.err[-500:]
    assert len(done.out.splitlines()) == 1
    assert len(done.out) < 400, done.out[:1000]
    assert "line 1" in done.out
