"""A page taken apart, as a browser would: well-formed, closed to the network, its texts."""

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

SVG = ".//svg[@role='img']"


class Reader(HTMLParser):
    """Collects the tags, what they could load or run, and the text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.dangers: list[str] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.dangers += [
            f"{tag} {name}={value}"
            for name, value in attrs
            if name in ("src", "href", "srcset", "data", "action") or name.startswith("on")
        ]

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] == "style":
            self.dangers += re.findall(r"@import|url\(", data)
        else:
            self.words.append(data)


def parse(page: str) -> ElementTree.Element:
    """Parse a page as XML, which allows no tag that is not closed; with its drawings."""
    first, _, rest = page.partition("\n")
    assert first == "<!DOCTYPE html>"
    return ElementTree.fromstring(rest)


def find_drawings(page: str) -> list[ElementTree.Element]:
    """Return the drawings that are not mere decoration."""
    return parse(page).findall(SVG)


def list_texts(part: ElementTree.Element) -> list[str]:
    """List what is written in a drawing."""
    return [text.text or "" for text in part.iter("text")]
