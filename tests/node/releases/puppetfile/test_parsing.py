"""The grammar of Puppetfiles: localpuppet reads data, and reports other code with its line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localpuppet.node.releases.puppetfile.entry import PuppetfileEntry
from localpuppet.node.releases.puppetfile.parsing import INSIDE, RUBY, parse

URL = "https://git.example.net/ntp.git"


def one(text: str) -> PuppetfileEntry:
    found = parse(text)
    assert found.notes == {}
    (entry,) = found.entries
    return entry


@pytest.mark.parametrize(
    "text",
    [
        f"mod 'ntp', :git => '{URL}', :tag => 'v1'",
        f"mod 'ntp', git: '{URL}', tag: 'v1'",
        f"mod('ntp', git: '{URL}', tag: 'v1')",
        f"mod 'ntp', {{ :git => '{URL}', :tag => 'v1' }}",
        f"mod 'ntp', 'git' => '{URL}', 'tag' => 'v1'",
        f'mod "ntp", :git => "{URL}", :tag => "v1"',
        f"mod 'ntp',\n  :git => '{URL}',\n  :tag => 'v1'\n",
        f"mod 'ntp',\n\n  # why\n  :git => '{URL}', # where\n  :tag =>\n    'v1',\n",
        f"mod 'ntp',:git=>'{URL}',:tag=>'v1'",
        f"mod 'ntp',\r\n  git:'{URL}',\r\n\ttag: 'v1'\r\n",
        f"\ufeffmod 'ntp', git: '{URL}', tag: 'v1'",
        f"=begin\nmod 'x'\n=end\nmod 'ntp', git: '{URL}', tag: 'v1'\n__END__\nmod 'y'\n",
        f"mod 'ntp', git: '{URL}', tag: 'v1'; forge 'x'",
        f"forge 'https://forge.example.net'\nmoduledir 'ext'\nmod 'ntp',\n"
        f"  :git => '{URL}',\n  :tag => 'v1',\nmoduledir 'x' # again",
    ],
)
def test_all_notations_of_a_module_are_read(text: str) -> None:
    entry = one(text)
    assert (entry.name, entry.version, entry.left) == ("ntp", "", "")
    assert entry.options == {"git": URL, "tag": "v1"}


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("mod 'puppetlabs/stdlib', '9.4.1'", "9.4.1"),
        ("mod 'puppetlabs-stdlib', :latest", "latest"),
        ("mod 'puppetlabs/stdlib'", ""),
        ("mod 'puppetlabs/stdlib', nil", ""),
        ("mod 'puppetlabs/stdlib', '>= 9.0.0 < 10.0.0'", ">= 9.0.0 < 10.0.0"),
    ],
)
def test_versions_of_the_forge_are_read(text: str, version: str) -> None:
    assert one(text).version == version


def test_comments_above_a_module_belong_to_it() -> None:
    text = "# header\n\n# why\n# it is\nmod 'a', 'x'\nmod 'b', 'y' # not this\n"
    assert [entry.comment for entry in parse(text).entries] == ["why\nit is", ""]


def test_moduledir_and_forge_are_kept() -> None:
    found = parse("forge 'https://forge.example.net'\nmoduledir 'ext'\n")
    assert (found.forge, found.moduledir) == ("https://forge.example.net", "ext")


@pytest.mark.parametrize(
    "text",
    [
        f"mod 'ntp', git: '{URL}', tag: tag",
        "mod 'ntp', git: \"#{base}/x\", tag: 'v1'",
        f"mod 'ntp', git: '{URL}' if true",
        f"mod 'ntp', git: '{URL}' + 'x'",
        "mod 'ntp', *rest",
        "mod 'ntp', \"a\\tb\"",
    ],
)
def test_a_module_with_ruby_code_is_left_with_its_name(text: str) -> None:
    found = parse(f"mod 'first', '1.0.0'\n{text}\nmod 'last', '1.0.0'\n")
    assert [(entry.name, entry.left) for entry in found.entries] == [
        ("first", ""),
        ("ntp", RUBY),
        ("last", ""),
    ]


def test_modules_inside_ruby_code_are_left() -> None:
    text = "v = 1\nif v\n  mod 'a', '1.0.0'\nelse\n  %w[x].each do |n|\n    mod 'b', '1.0.0'\n"
    found = parse(f"{text}  end\nend\nmod 'c', '1.0.0'\n")
    assert [(entry.name, entry.left) for entry in found.entries] == [
        ("a", INSIDE),
        ("b", INSIDE),
        ("c", ""),
    ]
    assert list(found.notes) == [1, 2]
    assert found.notes[1] == "'v = 1' is Ruby code ('--evaluate' runs it)"


PIECES = st.sampled_from(
    [
        *("mod ", "'ntp'", '"x"', ",", ":git", "git:", " => ", "\n", "#", "'", '"', "\\", "'v1'"),
        *("if ", "end", "do", "(", ")", "{", "}", " ", "é", "\0", "\u2028", "::", "=begin\n", ";"),
    ]
)


@given(st.one_of(st.text(), st.lists(PIECES, max_size=24).map("".join)))
def test_any_text_is_read_without_an_error(text: str) -> None:
    for entry in parse(text).entries:
        assert entry.line >= 1
