"""Read a JSON object from another program field by field.

Rules: a boolean is not an integer; no value is converted; an error names the field's place:
`request.args.tags[1]`.
"""

from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.schema_number import schema_problem
from localpuppet.base.formats.strict_json import parse_object
from localpuppet.base.formats.values import Json, at, wrong_type

T = TypeVar("T")


class Fields:
    """The fields of one object.

    A method that reads a field raises `InvalidInputError` if the field is missing or has another
    type. A method that ends in `_or_none` returns `None` if the field is missing or null.
    """

    def __init__(self, raw: Mapping[str, Json], *, where: str) -> None:
        self.raw = raw
        self.where = where

    @classmethod
    def parse(cls, data: bytes, *, where: str, limit: int) -> "Fields":
        """Return the fields of a JSON object; see `strict_json.parse_object`."""
        return cls(parse_object(data, where=where, limit=limit), where=where)

    def __contains__(self, key: object) -> bool:
        return key in self.raw

    def only(self, known: Collection[str]) -> None:
        """Reject an object with a field outside `known`."""
        for key in self.raw:
            if key not in known:
                raise InvalidInputError(f"unknown key {key[:60]!r}", where=self.where)

    def schema(self, number: int) -> None:
        """Check the schema number of the object."""
        if problem := schema_problem(self.raw.get("schema"), number):
            raise InvalidInputError(problem, where=self.where)

    def text(self, key: str) -> str:
        """Return a string."""
        return self._of(key, str, "a string")

    def text_or_none(self, key: str) -> str | None:
        """Return a string or `None`."""
        return None if self.raw.get(key) is None else self.text(key)

    def parsed(self, key: str, parse: Callable[[str], T]) -> T:
        """Return `parse` of a string; an error that `parse` raises gets the field's place."""
        text = self.text(key)
        try:
            return parse(text)
        except InvalidInputError as error:
            raise error.at(at(self.where, key)) from error

    def parsed_or_none(self, key: str, parse: Callable[[str], T]) -> T | None:
        """Return `parse` of a string, or `None`."""
        return None if self.raw.get(key) is None else self.parsed(key, parse)

    def parsed_list(
        self, key: str, parse: Callable[[str], T], *, minimum: int = 0, maximum: int
    ) -> tuple[T, ...]:
        """Return `parse` of each string in a list of `minimum` to `maximum` strings."""
        value = self.values(key)
        place = at(self.where, key)
        if not minimum <= len(value) <= maximum:
            raise InvalidInputError(
                f"has {len(value)} elements; {minimum} to {maximum} are allowed", where=place
            )
        items = []
        for index, item in enumerate(value):
            if not isinstance(item, str):
                raise wrong_type(item, "a string", at(place, index))
            try:
                items.append(parse(item))
            except InvalidInputError as error:
                raise error.at(at(place, index)) from error
        return tuple(items)

    def value(self, key: str) -> Json:
        """Return a value of any type."""
        return self._required(key)

    def values(self, key: str) -> list[Json]:
        """Return a list with elements of any type."""
        return self._of(key, list, "a list")

    def values_or_none(self, key: str) -> list[Json] | None:
        """Return a list with elements of any type, or `None`."""
        return None if self.raw.get(key) is None else self.values(key)

    def integer(self, key: str, *, minimum: int | None = None, maximum: int | None = None) -> int:
        """Return an integer from `minimum` to `maximum`, both included."""
        value = self._required(key)
        limits = "" if minimum is None else f" from {minimum}"
        limits += "" if maximum is None else f" to {maximum}"
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.wrong(key, f"an integer{limits}")
        if (minimum is not None and value < minimum) or (maximum is not None and value > maximum):
            raise InvalidInputError(
                f"is {value}, must be an integer{limits}", where=at(self.where, key)
            )
        return value

    def integer_or_none(
        self, key: str, *, minimum: int | None = None, maximum: int | None = None
    ) -> int | None:
        """Return an integer or `None`; see `integer`."""
        return (
            None
            if self.raw.get(key) is None
            else self.integer(key, minimum=minimum, maximum=maximum)
        )

    def number(self, key: str) -> float:
        """Return a number, whole or not."""
        value = self._required(key)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.wrong(key, "a number")
        return float(value)

    def seconds_or_none(self, key: str) -> float | None:
        """Return a positive number or `None`."""
        value = self.raw.get(key)
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
            raise self.wrong(key, "a positive number")
        return float(value)

    def boolean(self, key: str) -> bool:
        """Return true or false."""
        return self._of(key, bool, "true or false")

    def mapping(self, key: str) -> dict[str, Json]:
        """Return an object."""
        return self._of(key, dict, "a mapping")

    def inner(self, key: str) -> "Fields":
        """Return the fields of an inner object."""
        return Fields(self.mapping(key), where=at(self.where, key))

    def inner_or_none(self, key: str) -> "Fields | None":
        """Return the fields of an inner object, or `None`."""
        return None if self.raw.get(key) is None else self.inner(key)

    def inner_list(self, key: str, *, maximum: int) -> "tuple[Fields, ...]":
        """Return the fields of each object in a list of at most `maximum` objects."""
        value = self.values(key)
        place = at(self.where, key)
        if len(value) > maximum:
            raise InvalidInputError(
                f"has {len(value)} elements; at most {maximum} are allowed", where=place
            )
        items = []
        for index, item in enumerate(value):
            if not isinstance(item, dict):
                raise wrong_type(item, "a mapping", at(place, index))
            items.append(Fields(item, where=at(place, index)))
        return tuple(items)

    def wrong(self, key: str, wanted: str) -> InvalidInputError:
        """Return the error for a field whose value is not `wanted`."""
        return wrong_type(self.raw[key], wanted, at(self.where, key))

    def _of(self, key: str, form: type[T], noun: str) -> T:
        value = self._required(key)
        if not isinstance(value, form):
            raise self.wrong(key, noun)
        return value

    def _required(self, key: str) -> Json:
        if key not in self.raw:
            raise InvalidInputError(f"the key {key!r} is missing", where=self.where)
        return self.raw[key]
