"""Options for Puppet that a user adds: none takes the run out of our hands."""

import pytest

from localpuppet.errors import InvalidInputError
from localpuppet.puppet.command import check_extra


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
        "-e",
    ],
)
def test_whose_catalog_it_is_is_not_for_options_to_say(word: str) -> None:
    with pytest.raises(InvalidInputError, match="localpuppet sets it itself"):
        check_extra([word])


@pytest.mark.parametrize("word", ["--show_diff", "--trace", "-dv", "--ordering=title-hash"])
def test_other_options_are_taken(word: str) -> None:
    check_extra([word])
