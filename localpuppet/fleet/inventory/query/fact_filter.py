"""Parse mcollective's expressions over one fact: `hostname=/^web/`, `processorcount >= 3`.

- `servers_with_facts` uses this language, which mcollective documents:
  https://docs.puppet.com/mcollective/reference/basic/basic_cli_usage.html
- Order is for numbers: `memorysize>10` does not match the text "12 GiB", and the answer lists the
  nodes where a fact is not a number.
- A value between slashes is a regular expression. Any other value is literal.
- A node without the fact does not match any operator.
- One matching element of an array, or one matching key of a hash, is enough, as in mcollective's
  `has_fact?`. `!=` and `!~` negate `=` and `=~`: no element may match. In mcollective one differing
  element was enough, so `ips=10.0.0.5` and `ips!=10.0.0.5` were both true.
"""

import re
from dataclasses import dataclass

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.text import one_line
from localpuppet.fleet.inventory.query.comparing import check_order
from localpuppet.fleet.inventory.query.discovery import matching
from localpuppet.fleet.inventory.query.patterns import searching
from localpuppet.fleet.inventory.query.syntax import check_text
from localpuppet.fleet.inventory.query.tree import (
    ROLE,
    Condition,
    Field,
    Loose,
    Operator,
    Step,
    parse_step,
)

_FILTER = re.compile(r"\s*([^\s=!<>~]+)\s*([=!<>~]+)(.*)\Z", re.DOTALL)
_OPERATORS = {
    "=": "=",
    "==": "=",
    "!=": "!=",
    "<": "<",
    ">": ">",
    "<=": "<=",
    ">=": ">=",
    # Synonyms in mcollective.
    "=<": "<=",
    "=>": ">=",
    "=~": "~",
    "!~": "!~",
}
_EXPRESSION = re.compile(r"/(.+)/\Z", re.DOTALL)
_ORDERS = (Operator.LESS, Operator.AT_MOST, Operator.GREATER, Operator.AT_LEAST)


@dataclass(frozen=True, slots=True, kw_only=True)
class FactFilter:
    """One expression.

    Attributes:
        condition: Its condition.
        number: The fact that must be a number, for an operator of order.
    """

    condition: Condition
    number: Field | None

    @classmethod
    def parse(cls, text: str) -> "FactFilter":
        """Parse an expression.

        Raises:
            InvalidInputError: It is empty, or not `FACT OPERATOR VALUE`.
        """
        check_text(text)
        if not text.strip():
            raise InvalidInputError("the fact query is empty", hint="write FACT=VALUE")
        match = _FILTER.match(text)
        value = match[3].strip() if match else ""
        if not match or not value:
            raise InvalidInputError(
                f"could not parse the fact query {one_line(text)[:60]!r}: no operator with a value",
                hint=f"write FACT OPERATOR VALUE, the operator one of {' '.join(_OPERATORS)}",
            )
        if match[2] not in _OPERATORS:
            raise InvalidInputError(
                f"could not parse the fact query: the operator {match[2][:10]!r} is unknown",
                hint=f"it is one of {' '.join(_OPERATORS)}",
            )
        return cls._of(match[1], _OPERATORS[match[2]], value)

    @classmethod
    def _of(cls, name: str, word: str, value: str) -> "FactFilter":
        slashes = _EXPRESSION.match(value)
        if slashes and word in ("=", "!=", "~", "!~"):
            word, value = word.replace("=", "~"), slashes[1]
        contrary = word.startswith("!")
        operator = Operator(word.removeprefix("!"))
        if operator is Operator.MATCH:
            searching(value)
        check_order(operator, Loose(value), where="fact query")
        if name == "role":
            condition = matching(ROLE, operator, Loose(value), contrary=contrary)
            return cls(condition=condition, number=None)
        path: tuple[Step, ...] = tuple(map(parse_step, name.split(".")))
        field = Field(column="facts", path=path, text=name, members=True)
        return cls(
            condition=matching(field, operator, Loose(value), contrary=contrary),
            number=field if operator in _ORDERS else None,
        )

    @property
    def path(self) -> tuple[str | int, ...]:
        """Return the path of the fact that must be a number."""
        steps = () if self.number is None else self.number.path
        return tuple(step for step in steps if isinstance(step, str | int))
