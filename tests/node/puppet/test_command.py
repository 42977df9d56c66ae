"""Options for Puppet that a user adds: localpuppet refuses those that it sets itself."""

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.node.puppet.command_line import check_extra, error_lines


@pytest.mark.parametrize(
    "word",
    [
        *("--certname=x", "--node_name_value=x", "--node-name-value", "--node_name_fact=hostname"),
        *("--node_name=facter", "--NODE_NAME_VALUE=x", "--node_n", "--no-noop"),
        *("--no-storeconfigs", "--storeconfigs_backend=puppetdb", "--catalog_cache_terminus=json"),
        *("--catalog_terminus=rest", "--code=notify{'x':}", "--modulepath=/tmp"),
        *("--lastrunreport", "--no-detailed-exitcodes", "--splay", "--use_cached_catalog", "-e"),
    ],
)
def test_options_that_localpuppet_sets_itself_are_refused(word: str) -> None:
    with pytest.raises(InvalidInputError, match="localpuppet sets it itself"):
        check_extra([word])


@pytest.mark.parametrize("word", ["--show_diff", "--trace", "-dv", "--ordering=title-hash"])
def test_other_options_are_accepted(word: str) -> None:
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
def test_only_error_lines_that_end_a_run_count_as_errors(line: str, counts: bool) -> None:
    assert error_lines(f"before\n{line}\nafter\n".encode()) == ([line] if counts else [])
