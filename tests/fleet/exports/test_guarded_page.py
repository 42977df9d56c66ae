"""docs/reference/guarded-lines.md: what a guarded line drops of the real Puppet's types."""

import json
import subprocess
from pathlib import Path

import pytest

from localpuppet.fleet.exports.resource import OF_TYPES, is_guarded
from tests import rigs
from tests.rigs.guarded_page import PAGE, core_types, page

RUBY = Path(rigs.__file__).with_name("core_types.rb")


def test_the_page_describes_what_the_guard_does() -> None:
    assert PAGE.read_text("utf-8") == page(), "run scripts/guarded"


@pytest.mark.puppet
def test_the_page_has_every_parameter_of_the_installed_puppets_types() -> None:
    done = subprocess.run(["ruby", RUBY], capture_output=True, check=True)
    known = core_types()
    for kind, names in json.loads(done.stdout).items():
        assert set(names) <= set(known[kind]), kind


@pytest.mark.parametrize("kind", sorted(OF_TYPES))
def test_guarded_parameters_of_a_type_exist(kind: str) -> None:
    assert OF_TYPES[kind] <= set(core_types()[kind])


def test_a_type_lists_no_parameter_that_is_guarded_for_all_types() -> None:
    assert [name for names in OF_TYPES.values() for name in names if is_guarded(name)] == []
