"""Read the YAML form that localpuppet writes: blocks, two spaces per level, JSON strings.

Locks and imported manifests are in this form. Importing a general YAML reader costs 110 ms. A
caller writes the result again and compares: if the text differs, the strict reader reads it and
reports errors.
"""

import json
import re

from localpuppet.base.formats.values import Json

_STRING = r'"(?:[ !#-\[\]-~]|\\["\\])*"'
_SCALAR = rf"{_STRING}|0|[1-9][0-9]{{0,15}}|\{{\}}"
_LINE = re.compile(rf"((?:  )*)(?:([A-Za-z0-9_./+-]+):(?: ({_SCALAR}))?|- ({_STRING}))\Z")
_COMMENT = re.compile(r"^ *#[\x20-\x7e]*\n", re.MULTILINE)


def read(text: str) -> dict[str, Json] | None:
    """Return the mapping in `text`; `None` if the text is in another form."""
    root: dict[str, Json] = {}
    stack: list[dict[str, Json] | list[Json]] = [root]
    opened: tuple[dict[str, Json], str] = (root, "")
    for line in without_comments(text).removesuffix("\n").split("\n"):
        match = _LINE.match(line)
        if match is None or len(match[1]) // 2 >= len(stack):
            return None
        del stack[len(match[1]) // 2 + 1 :]
        inside = stack[-1]
        if match[4] is not None:
            if inside == {} and inside is opened[0].get(opened[1]):
                stack[-1] = opened[0][opened[1]] = inside = []
            if not isinstance(inside, list):
                return None
            inside.append(json.loads(match[4]))
        elif not isinstance(inside, dict):
            return None
        elif match[3] is None:
            child: dict[str, Json] = {}
            inside[match[2]] = child
            opened = (inside, match[2])
            stack.append(child)
        else:
            inside[match[2]] = json.loads(match[3])
    return root


def without_comments(text: str) -> str:
    """Return `text` without its comment lines."""
    return _COMMENT.sub("", text)
