"""YAML in the form in which we write it ourselves: blocks, two spaces a level, JSON's strings.

Owns: reading that form, and no other. Reading YAML in general costs 110 ms of imports; a lock and
an imported manifest are in this form. Whoever reads with it writes the result again and compares:
what is not exactly what we would have written is left to the strict reader and its messages.
"""

import json
import re

from localpuppet.base.formats.values import Json

_STRING = r'"(?:[ !#-\[\]-~]|\\["\\])*"'
_SCALAR = rf"{_STRING}|0|[1-9][0-9]{{0,15}}|\{{\}}"
_LINE = re.compile(rf"((?:  )*)(?:([A-Za-z0-9_./+-]+):(?: ({_SCALAR}))?|- ({_STRING}))\Z")
_COMMENT = re.compile(r"^ *#[\x20-\x7e]*\n", re.MULTILINE)


def read(text: str) -> dict[str, Json] | None:
    """Return the mapping in `text`, comments aside; `None` when it is in another form."""
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
    """Return `text` without the lines that are comments."""
    return _COMMENT.sub("", text)
