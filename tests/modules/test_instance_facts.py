"""localpuppet's fact file in a real Puppet: it adds only facts that no other source sets."""

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


def test_facts_of_facter_modules_and_the_site_take_precedence(bench: Bench) -> None:
    """localpuppet refuses such names earlier; the precedence is a second defence."""
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
    assert "password=evil" in done.text  # no other source sets this fact


def test_without_a_file_no_fact_is_added(bench: Bench) -> None:
    for named in ("", str(Path("/nonexistent"))):
        done = bench.apply(CODE, LOCALPUPPET_INSTANCE_FACTS=named)
        assert "role=\n" in done.text + "\n"
        assert not done.errors
