"""Our fact file in a real Puppet: it adds what nobody else says, whatever the file tells it."""

import json
from pathlib import Path

from tests.rigs.bench import MODULES, Bench

SHOWN = ("role", "kernel", "os", "tier", "zone_of_site", "password")
CODE = "\n".join(f"notify {{ \"{name}=${{facts['{name}']}}\": }}" for name in SHOWN)
EVIL = dict.fromkeys(SHOWN, "evil") | {"role": "wéb \u0007"}


def handed(bench: Bench, facts: dict[str, str]) -> str:
    path = bench.directory / "facts.json"
    path.write_text(json.dumps(facts))
    return str(path)


def test_facter_a_module_and_a_site_outweigh_it(bench: Bench) -> None:
    """The names were refused before; were they not, this still holds."""
    library = bench.directory / "site/other/lib/facter"
    library.mkdir(parents=True)
    (library / "tier.rb").write_text("Facter.add('tier') { setcode { 'module' } }")
    external = bench.directory / "var/facts.d"
    external.mkdir(parents=True, exist_ok=True)
    (external / "site.txt").write_text("zone_of_site=external\n")
    done = bench.apply(
        CODE,
        *("--modulepath", f"{MODULES}:{bench.directory / 'site'}"),
        LOCALPUPPET_INSTANCE_FACTS=handed(bench, EVIL),
    )
    assert done.code == 2, done.text
    assert "kernel=Linux" in done.text
    assert "os={" in done.text
    assert "tier=module" in done.text
    assert "zone_of_site=external" in done.text
    assert "role=wéb" in done.text
    assert "password=evil" in done.text  # a name that nobody else has


def test_without_a_file_it_adds_nothing(bench: Bench) -> None:
    for named in ("", str(Path("/nonexistent"))):
        done = bench.apply(CODE, LOCALPUPPET_INSTANCE_FACTS=named)
        assert "role=\n" in done.text + "\n"
        assert not done.errors
