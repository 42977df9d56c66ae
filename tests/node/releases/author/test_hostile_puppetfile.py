"""Hostile Puppetfiles: localpuppet reads or refuses them with bounded memory and time."""

import pytest

from tests.rigs.limited import limited

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


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_puppetfile_needs_little_memory_and_time(name: str) -> None:
    done = limited(
        "from localpuppet.node.releases.author.puppetfile import parse\n"
        f"print(len(parse({HOSTILE[name]}).entries))\n",
        seconds=15,
    )
    assert done.code == 0, done.err[-500:]
    assert done.out == f"{READ.get(name, 0)}\n"
