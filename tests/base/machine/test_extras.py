"""The extra that brings a missing module; tests/test_node_alone.py runs without the modules."""

import pytest

from localpuppet.base.machine.extras import explain_missing


@pytest.mark.parametrize(
    ("module", "extra"),
    [
        ("cryptography.x509", "fleet"),
        ("joserfc", "fleet"),
        ("nats.aio", "nats"),
        ("grpclib", "etcd"),
        ("starlette", "web"),
        ("dns.resolver", "srv"),
    ],
)
def test_the_error_for_a_missing_module_names_the_first_extra_that_has_it(
    module: str, extra: str
) -> None:
    error = ModuleNotFoundError(f"No module named {module!r}", name=module)
    top = module.partition(".")[0]
    assert str(explain_missing(error, where="localpuppet nodes")) == (
        f"localpuppet nodes: needs the extra '{extra}', and Python has no module '{top}'"
        f" (pip install 'PATH[{extra}]', where PATH is the clone or wheel of localpuppet)"
    )


@pytest.mark.parametrize("name", ["yaml", "localpuppet.fleet.nothing", "", None])
def test_no_extra_explains_the_absence_of_any_other_module(name: str | None) -> None:
    assert explain_missing(ModuleNotFoundError("x", name=name), where="localpuppet") is None
