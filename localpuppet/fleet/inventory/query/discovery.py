"""Parse puppetdbquery's language for nodes, and mcollective's expressions over one fact.

- `query_nodes`, `query_facts`, `query_resources`, `localpuppet::query` and `localpuppet query` use
  it. The grammar is that of https://forge.puppet.com/modules/dalen/puppetdbquery, with two
  additions: `version("7.2")` as a value, and `role` as any of a node's roles.
- A fact path must lead to one value: `networking.ip=10.0.0.1`; `*` and `~"regexp"` match any step.
  A node without the fact matches neither `=` nor `!=`.
- A bare word is searched in the node's name.
- Class names match in any case: `class[profile::web]`.
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
from dataclasses import replace
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.times import show_epoch
from localpuppet.base.formats.values import Json
from localpuppet.base.value import Value
from localpuppet.fleet.inventory.query import tree
from localpuppet.fleet.inventory.query.ast_form import parse_condition, parse_field
from localpuppet.fleet.inventory.query.comparing import check_order, instant, searching
from localpuppet.fleet.inventory.query.records import CLASS
from localpuppet.fleet.inventory.query.syntax import check_text, parsed, with_operators
from localpuppet.fleet.inventory.tables import capitalized, class_title

if TYPE_CHECKING:
    from lark import Lark, Token, Tree


GRAMMAR = r"""
start: [or]
?or: and (OR and)*
?and: not (AND not)*
?not: negated | primary
negated: NOT not
?primary: "(" or ")" | compared | named | resource | subquery
compared: path OPERATOR literal
named: path
path: step ("." step)*
step: word | MATCHED | ANY
resource: [EXPORTED] word "[" step "]" ["{" or "}"]
subquery: "#" word ("." compared | "{" or "}")
word: DOUBLE | SINGLE | NUMBER | WORD
literal: DOUBLE | SINGLE | REAL | NUMBER | WORD | VERSION | DATE

OR.3: /or(?![\w:])/
AND.3: /and(?![\w:])/
NOT.3: /not(?![\w:])|!(?![=~])/
EXPORTED.2: "@@"
DATE.2: /@\s*(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')/
VERSION.3: /version\(\s*(?:"[^"\\]*"|'[^'\\]*')\s*\)/
MATCHED.4: /~\s*(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[\w:]+)(?=\s*[.\]SIGNS])/
ANY: "*"
REAL.3: /-?[0-9]+\.[0-9]+(?![\w:-])/
NUMBER.2: /-?[0-9]+(?![\w:-])/
WORD: /[\w:][\w:-]*/
DOUBLE: /"(?:[^"\\]|\\.)*"/s
SINGLE: /'(?:[^'\\]|\\.)*'/s
%ignore /\s+/
"""
_HELP = "'localpuppet query --help' shows the language"
_OPERATORS = {"==": "=", "=~": "~"}
_WORDS = ("AND", "OR")


class _Mode(Enum):
    """The subject of an expression."""

    NODES = "nodes"
    RESOURCES = "resources"
    PARAMETERS = "parameters"
    COLUMNS = "columns of nodes"


# The start of a PQL query, which former users of PuppetDB may write here.
_PQL = re.compile(r"\s*(?:inventory|nodes|facts|fact_contents|resources)\s*[\[{]")


def parse_nodes(query: Json) -> tree.Condition:
    """Parse a query for nodes, or PuppetDB's array form; empty text or `false` selects all."""
    if _is_none(query):
        return tree.ALL
    if isinstance(query, list):
        return tree.related(tree.Entity.NODES, parse_condition(query, tree.Entity.NODES))
    if isinstance(query, str) and _PQL.match(query):
        raise InvalidInputError(
            "is PQL, which only puppetdb_query() takes",
            hint=f"write os.name=CentOS and Class[Apache]: {_HELP}",
        )
    return _parse(query, _Mode.NODES)


def parse_resources(query: Json) -> tree.Condition:
    """Parse a condition on resources: `Class["apache"]`, or an array."""
    if _is_none(query):
        raise InvalidInputError("the query for resources is empty")
    if isinstance(query, list):
        return parse_condition(query, tree.Entity.RESOURCES)
    return _parse(query, _Mode.RESOURCES)


def _is_none(query: Json) -> bool:
    blank = isinstance(query, str) and not query.strip()
    return blank or query is None or query is False or query == []


def _parse(query: Json, mode: _Mode) -> tree.Condition:
    if not isinstance(query, str):
        raise InvalidInputError("a query must be a string or an array")
    node = parsed(_parser(), check_text(query), what="", hint=_HELP)
    expression: Any = node.children[0]
    return tree.check_size(_condition(expression, mode))


@cache
def _parser() -> "Lark":
    from lark import Lark  # 45 ms: for who asks a query

    words = tree.OPERATORS - {tree.Operator.PATH_MATCH.value} | _OPERATORS.keys()
    return Lark(with_operators(GRAMMAR, words), parser="lalr", maybe_placeholders=True)


def _condition(node: "Tree[Token]", mode: _Mode) -> tree.Condition:
    parts: list[Any] = [part for part in node.children if part is not None]
    if node.data in ("and", "or"):
        inner = tuple(
            _condition(part, mode) for part in parts if getattr(part, "type", "") not in _WORDS
        )
        return tree.And(parts=inner) if node.data == "and" else tree.Or(parts=inner)
    if node.data == "negated":
        return tree.Not(part=_condition(parts[1], mode))
    if node.data == "compared":
        return _compared(parts[0].children, str(parts[1]), parts[2], mode)
    if node.data == "resource":
        return _resource(parts, mode)
    if mode is not _Mode.NODES:
        raise InvalidInputError(f"the query for {mode.value} has a bare word")
    if node.data == "named":
        name = ".".join(_plain(step) for step in parts[0].children)
        return tree.Compare(
            field=tree.CERTNAME, operator=tree.Operator.MATCH, value=re.escape(name)
        )
    return _subquery(_word(parts[0]), parts[1])


def _compared(
    steps: list["Tree[Token]"], written: str, literal: "Tree[Token]", mode: _Mode
) -> tree.Condition:
    contrary = written.startswith("!")
    operator = tree.Operator(_OPERATORS.get(written, written.removeprefix("!")))
    value = _value(literal, operator)
    if mode is _Mode.NODES:
        check_order(operator, value)
        path = tuple(map(_step, steps))
        if path == ("role",):
            return matching(tree.ROLE, operator, value, contrary=contrary)
        field = tree.Field(column="facts", path=path, text=".".join(map(str, path)))
        return tree.Compare(field=field, operator=operator, value=value, contrary=contrary)
    if mode is _Mode.RESOURCES:
        raise InvalidInputError("the query for resources compares a fact", hint="write Class[NAME]")
    name = ".".join(map(_plain, steps))
    if mode is _Mode.PARAMETERS:
        field = parse_field("tag" if name == "tag" else f"parameters.{name}", tree.Entity.RESOURCES)
    else:
        field = parse_field(name, tree.Entity.NODES)
        value = value.text if isinstance(value, tree.Loose) else value
    test = tree.Compare(field=field, operator=operator, value=value)
    return tree.Not(part=test) if contrary else test


def matching(
    field: tree.Field, operator: tree.Operator, value: tree.Operand, *, contrary: bool
) -> tree.Condition:
    """Return a condition that a field's value matches, or that it exists and does not match."""
    test = tree.Compare(field=field, operator=operator, value=value)
    if not contrary:
        return test
    present = tree.IsNull(field=replace(field, members=False), wanted=False)
    return tree.And(parts=(present, tree.Not(part=test)))


def _resource(parts: list[Any], mode: _Mode) -> tree.Condition:
    exported = getattr(parts[0], "type", "") == "EXPORTED"
    kind, title, *body = parts[1:] if exported else parts
    type_name = capitalized(_word(kind))
    step = _step(title)
    conditions: list[tree.Condition] = [tree.equal("type", type_name)]
    if isinstance(step, tree.Pattern):
        conditions.append(
            tree.Compare(
                field=tree.Field(column="title", text="title"),
                operator=tree.Operator.MATCH,
                value=step.expression,
            )
        )
    else:
        name = str(step)
        conditions.append(tree.equal("title", class_title(name) if type_name == CLASS else name))
    conditions.append(tree.equal("exported", exported))
    conditions += [_condition(part, _Mode.PARAMETERS) for part in body]
    where = tree.And(parts=tuple(conditions))
    if mode is _Mode.RESOURCES:
        return where
    if mode is not _Mode.NODES:
        raise InvalidInputError(f"there is a resource among {mode.value}")
    return tree.related(tree.Entity.RESOURCES, where)


def _subquery(name: str, body: "Tree[Token]") -> tree.Condition:
    if name != "node":
        raise InvalidInputError(f"#{name[:40]} is not supported", hint="use #node")
    return tree.related(tree.Entity.NODES, _condition(body, _Mode.COLUMNS))


def _step(node: "Tree[Token]") -> tree.Step:
    child: Any = node.children[0]
    kind = getattr(child, "type", "")
    if kind == "ANY":
        return tree.Pattern(".*")
    if kind == "MATCHED":
        return tree.Pattern(_unquoted(str(child)[1:].strip()))
    text = _word(child)
    return tree.parse_step(text) if child.children[0].type == "NUMBER" else text


def _plain(node: "Tree[Token]") -> str:
    step = _step(node)
    if isinstance(step, tree.Pattern):
        raise InvalidInputError("a regular expression is not allowed here")
    return str(step)


def _word(node: "Tree[Token]") -> str:
    return _unquoted(str(node.children[0]))


def _value(node: "Tree[Token]", operator: tree.Operator) -> tree.Operand:
    token: Any = node.children[0]
    text = str(token)
    if operator.is_of_text or token.type in ("DOUBLE", "SINGLE"):
        return _unquoted(text)
    if token.type == "VERSION":
        return tree.VersionValue(_unquoted(text.removeprefix("version(").removesuffix(")").strip()))
    if token.type == "DATE":
        return _date(_unquoted(text[1:].strip()))
    return tree.Loose(text)


def _date(text: str) -> str:
    moment = instant(text)
    if moment is None:
        raise InvalidInputError("a date is not understood", hint='write @"2026-11-22T04:00:00Z"')
    return show_epoch(moment / 1_000_000)


def _unquoted(text: str) -> str:
    """Return a string without quotes; a backslash escapes a quote or a backslash."""
    if text[:1] not in ("'", '"'):
        return text
    return re.sub(r"\\([\\'\"])", r"\1", text[1:-1])


_FILTER = re.compile(r"\s*([^\s=!<>~]+)\s*([=!<>~]+)(.*)\Z", re.DOTALL)
_FACT_OPERATORS = ("=", "==", "!=", "<", ">", "<=", ">=", "=<", "=>", "=~", "!~")
# Synonyms in mcollective.
_SYNONYMS = {**_OPERATORS, "=<": "<=", "=>": ">="}
_EXPRESSION = re.compile(r"/(.+)/\Z", re.DOTALL)


class FactFilter(Value):
    condition: tree.Condition
    number: tree.Field | None

    @classmethod
    def parse(cls, text: str) -> "FactFilter":
        check_text(text)
        if not text.strip():
            raise InvalidInputError("the fact query is empty", hint="write FACT=VALUE")
        match = _FILTER.match(text)
        value = match[3].strip() if match else ""
        if not match or not value:
            raise InvalidInputError(
                f"could not parse the fact query {one_line(text)[:60]!r}: no operator with a value",
                hint=f"write FACT OPERATOR VALUE, the operator one of {' '.join(_FACT_OPERATORS)}",
            )
        if match[2] not in _FACT_OPERATORS:
            raise InvalidInputError(
                f"could not parse the fact query: the operator {match[2][:10]!r} is unknown",
                hint=f"it is one of {' '.join(_FACT_OPERATORS)}",
            )
        return cls._of(match[1], _SYNONYMS.get(match[2], match[2]), value)

    @classmethod
    def _of(cls, name: str, word: str, value: str) -> "FactFilter":
        slashes = _EXPRESSION.match(value)
        if slashes and word in ("=", "!=", "~", "!~"):
            word, value = word.replace("=", "~"), slashes[1]
        contrary = word.startswith("!")
        operator = tree.Operator(word.removeprefix("!"))
        if operator is tree.Operator.MATCH:
            searching(value)
        check_order(operator, tree.Loose(value), where="fact query")
        if name == "role":
            condition = matching(tree.ROLE, operator, tree.Loose(value), contrary=contrary)
            return cls(condition=condition, number=None)
        path: tuple[tree.Step, ...] = tuple(map(tree.parse_step, name.split(".")))
        field = tree.Field(column="facts", path=path, text=name, members=True)
        return cls(
            condition=matching(field, operator, tree.Loose(value), contrary=contrary),
            number=field if operator in tree.ORDERS else None,
        )

    @property
    def path(self) -> tuple[str | int, ...]:
        """Return the path of the fact that must be a number."""
        steps = () if self.number is None else self.number.path
        return tuple(step for step in steps if isinstance(step, str | int))
