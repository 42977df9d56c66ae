"""Parses HTML in tests: lists its elements, and asserts that each one is closed."""

from collections import Counter
from html.parser import HTMLParser

_VOID = ("br", "hr", "img", "input", "link", "meta")


class ParsedMarkup(HTMLParser):
    """The elements and attributes of HTML.

    Args:
        text: HTML in which each element is closed.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: Counter[str] = Counter()
        self.attributes: set[str] = set()
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements[tag] += 1
        self.attributes |= {name for name, _ in attrs}
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
