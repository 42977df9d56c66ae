"""JSON that is put into other JSON as it is."""

import json

from localpuppet.base.formats.json_text import JsonText, compact, elements, members


def test_text_stands_as_it_is_among_values() -> None:
    inner = elements([compact("ä\n"), "{}"])
    text = members({"ok": True, 'a "name"': JsonText(inner), "none": None})
    assert text == '{"ok":true,"a \\"name\\"":["\\u00e4\\n",{}],"none":null}'
    assert json.loads(text) == {"ok": True, 'a "name"': ["ä\n", {}], "none": None}


def test_nothing_is_an_empty_object_or_list() -> None:
    assert (members({}, end="\n"), elements([])) == ("{}\n", "[]")
