"""Checks the built site: `python docs/opforge_docs/links.py FOLDER` prints what is dead, and fails if anything is.

Links to files and anchors of the site must exist, and a page may load nothing from elsewhere: the site works offline.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {("script", "src"), ("link", "href"), ("img", "src"), ("object", "data"), ("source", "src"), ("iframe", "src")}
"""(element, attribute) of what a browser loads with the page."""


class Page(HTMLParser):
    """The anchors of a page, and its links with the element and attribute that have them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[tuple[str, str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Keeps what an element names and links to. HTMLParser calls it."""
        for name, value in attributes:
            if name == "id" or (tag, name) == ("a", "name"):
                self.anchors.add(value or "")
            elif (tag, name) == ("a", "href") or (tag, name) in LOADED:
                self.links.append((tag, name, value or ""))


def problems(folder: Path) -> list[str]:
    """Returns each dead link and each thing that is loaded from elsewhere, with its page."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.html"))}
    return [
        f"{path.relative_to(folder)}: {problem}"
        for path, page in pages.items()
        for tag, name, link in dict.fromkeys(page.links)
        if (problem := _problem(path, tag, name, link, pages, folder))
    ]


def _problem(page: Path, tag: str, name: str, link: str, pages: dict[Path, Page], folder: Path) -> str:
    parts = urlsplit(link)
    if parts.scheme == "data" or (parts.scheme and (tag, name) == ("a", "href")):
        return ""
    if parts.scheme or parts.netloc:
        return f"{link} is loaded from elsewhere"
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if not target.is_relative_to(folder) or not target.is_file():
        return f"{link} does not exist"
    if parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
        return f"{link}: the page has no such anchor"
    return ""


def main(folder: Path) -> int:
    """Prints the problems of a folder. Returns the exit code."""
    lines = problems(folder.resolve())
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
