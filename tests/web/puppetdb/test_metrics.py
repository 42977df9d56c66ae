"""Metrics as clients of Jolokia read them."""

import pytest

from localpuppet.base.formats.values import Json
from localpuppet.web.puppetdb.metrics import listed, read

NAME = "puppetlabs.puppetdb.population:name=num-nodes"
MBEANS: dict[str, dict[str, Json]] = {NAME: {"Value": 3}}


@pytest.mark.parametrize(("path", "value"), [(NAME, {"Value": 3}), (f"{NAME}/Value", 3)])
def test_an_mbean_has_attributes(path: str, value: Json) -> None:
    answer = read(MBEANS, path, 1_700_000_000.5)
    assert (answer["value"], answer["status"]) == (value, 200)
    assert answer["timestamp"] == 1_700_000_000


@pytest.mark.parametrize("path", ["java.lang:type=Memory", f"{NAME}/Count"])
def test_an_unknown_mbean_is_an_error_and_not_empty(path: str) -> None:
    answer = read(MBEANS, path, 0)
    assert (answer["status"], "value" in answer) == (404, False)
    assert "InstanceNotFoundException" in str(answer["error"])


def test_a_list_has_the_domains() -> None:
    assert listed(MBEANS, 0)["value"] == {
        "puppetlabs.puppetdb.population": {
            "name=num-nodes": {"attr": {"Value": {"rw": False, "type": "java.lang.Object"}}}
        }
    }
