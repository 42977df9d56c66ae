"""Errors with a location, and the first error of a group."""

import pytest

from localpuppet.base.bounded_dict import BoundedDict
from localpuppet.base.errors import InvalidInputError, StateError, errors_at, first_error
from localpuppet.base.machine.own_program import explain_missing


def test_nested_locations_are_put_in_front_of_an_error() -> None:
    with (
        pytest.raises(InvalidInputError) as refusal,
        errors_at("input.yaml"),
        errors_at("layers.web"),
    ):
        raise InvalidInputError("is not a tag", hint="write a tag")
    assert str(refusal.value) == "input.yaml: layers.web: is not a tag (write a tag)"


def test_an_error_of_another_class_passes_unchanged() -> None:
    with pytest.raises(StateError) as problem, errors_at("input.yaml"):
        raise StateError("is damaged", where="file")
    assert str(problem.value) == "file: is damaged"


def test_the_first_error_is_found_in_nested_groups() -> None:
    first = ValueError("a")
    inner = ExceptionGroup("inner", [first, ValueError("b")])
    assert first_error(ExceptionGroup("outer", [inner, ValueError("c")])) is first
    assert first_error(first) is first


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
def test_the_error_for_a_missing_module_names_the_first_extra(module: str, extra: str) -> None:
    error = ModuleNotFoundError(f"No module named {module!r}", name=module)
    top = module.partition(".")[0]
    assert str(explain_missing(error, where="localpuppet nodes")) == (
        f"localpuppet nodes: needs the extra '{extra}', and Python has no module '{top}'"
        f" (pip install 'PATH[{extra}]', where PATH is the clone or wheel of localpuppet)"
    )


@pytest.mark.parametrize("name", ["yaml", "localpuppet.fleet.nothing", "", None])
def test_no_extra_explains_the_absence_of_any_other_module(name: str | None) -> None:
    assert explain_missing(ModuleNotFoundError("x", name=name), where="localpuppet") is None


def test_the_key_that_was_set_first_is_forgotten_above_the_limit() -> None:
    known: BoundedDict[str, int] = BoundedDict(2)
    known["a"] = 1
    known["b"] = 2
    known["a"] = 3
    assert known == {"b": 2, "a": 3}
    known["c"] = 4
    assert known == {"a": 3, "c": 4}
