"""JSON text that is inserted into other JSON unchanged."""

import json

from localpuppet.base.formats.json_text import JsonText, compact, elements, members


def test_json_text_is_inserted_unchanged_among_values() -> None:
    inner = elements([compact("ä\n"), "{}"])
    text = members({"ok": True, 'a "name"': JsonText(inner), "none": None})
    assert text == '{"ok":true,"a \\"name\\"":["\\u00e4\\n",{}],"none":null}'
    assert json.loads(text) == {"ok": True, 'a "name"': ["ä\n", {}], "none": None}


def test_no_members_make_an_empty_object_and_no_elements_an_empty_list() -> None:
    assert (members({}, end="\n"), elements([])) == ("{}\n", "[]")
