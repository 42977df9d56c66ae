"""Options for Puppet that a user adds: none takes the run out of our hands."""

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.node.puppet.command import check_extra, error_lines


@pytest.mark.parametrize(
    "word",
    [
        "--certname=x",
        "--node_name_value=x",
        "--node-name-value",
        "--node_name_fact=hostname",
        "--node_name=facter",
        "--NODE_NAME_VALUE=x",
        "--node_n",
        "--no-noop",
        "--no-storeconfigs",
        "--storeconfigs_backend=puppetdb",
        "--catalog_cache_terminus=json",
        "-e",
    ],
)
def test_whose_catalog_it_is_is_not_for_options_to_say(word: str) -> None:
    with pytest.raises(InvalidInputError, match="localpuppet sets it itself"):
        check_extra([word])


@pytest.mark.parametrize("word", ["--show_diff", "--trace", "-dv", "--ordering=title-hash"])
def test_other_options_are_taken(word: str) -> None:
    check_extra([word])


@pytest.mark.parametrize(
    ("line", "counts"),
    [
        ("Error: Could not run: Evaluation Error: Error while evaluating a Function Call", True),
        ("Error: Facter: error while resolving custom fact", False),
        ("Error: Scope(Class[App]): said by err()", False),
        ("Warning: an Error that is near", False),
        ("/usr/lib/ruby/x.rb:1: warning: Error is deprecated", False),
    ],
)
def test_an_error_is_a_line_of_that_severity_that_ended_something(line: str, counts: bool) -> None:
    assert error_lines(f"before\n{line}\nafter\n".encode()) == ([line] if counts else [])
