"""The grammar of Puppetfiles: localpuppet reads data, and reports other code with its line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localpuppet.base.errors import InvalidInputError
from localpuppet.node.releases.author.puppetfile import INSIDE, RUBY, PuppetfileEntry, parse
from tests.rigs.limited import limited

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
        f"mod 'ntp', git: '{URL}', tag: 'v1', install_path: nil",
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


def test_forge_moduledir_and_comment_above_each_entry_are_kept() -> None:
    text = "forge 'https://forge.example.net'\nmod 'a'\nmoduledir 'x'\n# header\n\n# why\n# it is\n"
    found = parse(f"{text}mod 'b'\nmoduledir ''\nmod 'c', 'y' # not this\n")
    assert found.forge == "https://forge.example.net"
    assert [entry.moduledir for entry in found.entries] == [None, "x", ""]
    assert [entry.comment for entry in found.entries] == ["", "why\nit is", ""]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"mod 'ntp',\n  git: '{URL}'\n  tag: 'v1'\n", 3),
        (f"mod 'ntp',\n  :git => '{URL}'\n  :tag => 'v1'\n", 3),
        (f"mod 'ntp', git: '{URL}' tag: 'v1'\n", 1),
        (f"mod 'ntp', :git => '{URL}' :tag => 'v1'\n", 1),
        (f"mod 'ntp', git: '{URL}', ref: :main tag: 'v1'\n", 1),
        ("# above\nmod 'ntp' '1.2.3'\n", 2),
        ("mod 'ntp' :latest\n", 1),
        ("mod 'a', '1.0'\nmod 'ntp'\n  git: 'x'\n", 3),
    ],
)
def test_a_missing_comma_is_an_error_on_its_line_as_for_ruby(text: str, line: int) -> None:
    with pytest.raises(InvalidInputError, match=f"^line {line}: a comma is missing before"):
        parse(text)


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


@pytest.mark.parametrize(
    "text",
    [
        "x = <<EOS\nmod 'not', '6.6.6'\nEOS\n",
        "puts <<-'EOS'.strip\nmod 'not', '6.6.6'\n EOS\n",
        "mod 'a', <<~EOS\n  mod 'not', '6.6.6'\n  EOS\n",
        'x = \'multi\nmod "not", "6.6.6"\nline\'\n',
        "x = `\nmod 'not', '6.6.6'\n`\n",
        "x = if false\nmod 'not', '6.6.6'\nend\n",
        "x = case 1\nwhen 2\nmod 'not', '6.6.6'\nend\n",
        "false and\nmod 'not', '6.6.6'\n",
        "false ||\nmod 'not', '6.6.6'\n",
        "if false\n (1..2).end\n mod 'not', '6.6.6'\nend\n",
        "if false\n x = 5 if true\n y = if true then 1 else 2 end\n mod 'not', '6.6.6'\nend\n",
        "if false\n x = begin 1 end\n mod 'not', '6.6.6'\nend\n",
        "if false\n return if (case 1 when 2 then 3 end)\n mod 'not', '6.6.6'\nend\n",
        "x = 1\nlist <<'item'\nmod 'last', '1.0.0'\n\0mod 'not', '6.6.6'\n",
    ],
)
def test_what_ruby_does_not_run_as_an_entry_is_taken_as_none(text: str) -> None:
    found = parse(f"{text}mod 'last', '1.0.0'\n")
    assert [entry.name for entry in found.entries if not entry.left] == ["last"]
    assert found.notes or [entry.name for entry in found.entries if entry.left] == ["a"]


@pytest.mark.parametrize(
    "text", ["if true\n  moduledir 'x'\nend", 'moduledir "#{dir}/x"', "moduledir 'x' if true"]
)
def test_entries_below_a_moduledir_of_ruby_code_are_left(text: str) -> None:
    found = parse(f"mod 'a', '1.0.0'\n{text}\nmod 'b', '1.0.0'\nmoduledir 'y'\nmod 'c', '1.0.0'\n")
    left = [(entry.name, entry.left) for entry in found.entries]
    assert left == [("a", ""), ("b", f"the moduledir above it {RUBY}"), ("c", "")]


PIECES = st.sampled_from(
    [
        *("mod ", "'ntp'", '"x"', ",", ":git", "git:", " => ", "\n", "#", "'", '"', "\\", "'v1'"),
        *("if ", "end", "do", "(", ")", "{", "}", " ", "é", "\0", "\u2028", "::", "=begin\n", ";"),
    ]
)


@given(st.one_of(st.text(), st.lists(PIECES, max_size=24).map("".join)))
def test_any_text_is_read_without_another_error_than_a_missing_comma(text: str) -> None:
    try:
        entries = parse(text).entries
    except InvalidInputError as error:
        assert "a comma is missing" in error.what
        return
    for entry in entries:
        assert entry.line >= 1


# Each has about 1 MiB, the limit.
HOSTILE = {
    "one string": "\"mod '\" + 'a' * 1_000_000 + \"'\\n\"",
    "strings": "\"mod 'a', \" + \"'b',\" * 250_000",
    "words": "\"mod 'a', \" + 'b,' * 500_000",
    "brackets": "'[' * 1_000_000",
    "backslashes": "'\"' + chr(92) * 1_000_000",
    "unclosed strings": "(\"'\" + 'b' * 2000) * 500",
    "unclosed symbols": "':\"' * 300_000",
    "modules": "\"mod 'a/b'\\n\" * 100_000",
    "comments": "'#\\n' * 500_000",
    "conditions": "'if true\\n' * 120_000",
}
READ = {"one string": 1, "strings": 1, "words": 1, "modules": 100_000}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_puppetfile_needs_little_memory_and_time(name: str) -> None:
    done = limited(
        "from localpuppet.node.releases.author.puppetfile import parse\n"
        f"print(len(parse({HOSTILE[name]}).entries))\n",
        seconds=15,
    )
    assert done.code == 0, done.err[-500:]
    assert done.out == f"{READ.get(name, 0)}\n"
