"""The parts of the documentation site: filled-in pages, the reference of commands, and the check of links."""

from __future__ import annotations

import html
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import opforge

pytest.importorskip("sphinx", reason="needs Sphinx, which is installed with Python 3.11 and newer")
ROOT = Path(__file__).resolve().parents[3]
BUILT = os.environ.get("OPFORGE_SITE", "")
"""The folder of a site that `make docs` has built."""


@pytest.fixture(scope="module", autouse=True)
def site():
    """Makes the site's own package importable, as docs/conf.py does."""
    sys.path.insert(0, str(ROOT / "docs"))
    yield
    sys.path.remove(str(ROOT / "docs"))


def part(name):
    return importlib.import_module(f"opforge_docs.{name}")


def filled_in(text):
    source = [text]
    part("pages").fill_in(None, "page", source)
    return source[0]


def test_the_contents_of_a_section_are_the_pages_that_it_links_to():
    links = "- [A](a.md), [B](sub/b.md#part), [C](https://x/c.md)\n- [D](../d.md)"
    text = f"# T\n\n## Guides\n\n{links}\n\n<!-- site: contents -->\n"
    assert filled_in(text).endswith("```{toctree}\n:hidden:\n:caption: Guides\n\na\n../d\n```\n")


def test_pages_of_a_nested_list_are_below_the_first_page_of_its_item():
    text = "## Guides\n\n- [A](a.md), [B](b.md):\n  - [C](sub/c.md),\n    [D](d.md)\n- [E](e.md)\n"
    assert part("pages").below(text) == {"docs/a": ["docs/sub/c", "docs/d"]}
    assert filled_in(f"# T\n\n{text}\n<!-- site: contents -->\n").endswith(":caption: Guides\n\na\nb\ne\n```\n")


def test_the_sidebar_shows_no_more_than_25_pages_at_first_and_none_twice():
    pages = part("pages")
    index = (ROOT / "docs" / "index.md").read_text()
    first = [link for section in re.split("^## ", index, flags=re.MULTILINE)[1:] for link in entries(section)]
    below = [name for names in pages.below(index).values() for name in names]
    assert len(first) <= 25
    every = [*(os.path.normpath(f"docs/{link}") for link in first), *below]
    assert len(every) == len(set(every))


def entries(section):
    """Returns the pages of a section's toctree."""
    _, has_contents, _ = section.partition("<!-- site: contents -->")
    lines = part("pages").contents(f"## {section}").splitlines() if has_contents else []
    return [line for line in lines if line and line[0] not in "`:"]


def test_the_contents_of_a_whole_page_are_those_of_its_own_folder():
    text = "# T\n\n[Up](../up.md)\n\n## One\n\n[B](002.md)\n\n## Two\n\n[A](001.md)\n\n<!-- site: contents all -->\n"
    assert filled_in(text).endswith("```{toctree}\n:hidden:\n\n001\n002\n```\n")


def test_a_comment_of_another_kind_is_an_error():
    with pytest.raises(ValueError, match="is not one of contents, module NAME, commands, search WORDS"):
        filled_in("<!-- site: contnets -->\n")


def test_every_page_of_the_documentation_is_in_the_contents():
    pages = part("pages")
    listed = {ROOT / "docs" / "index.md"}
    below = part("pages").below((ROOT / "docs" / "index.md").read_text())
    listed |= {ROOT / f"{name}.md" for names in below.values() for name in names}
    for page in (ROOT / "docs" / "index.md", ROOT / "docs" / "decisions" / "README.md"):
        toctrees = filled_in(page.read_text()).split("```{toctree}")[1:]
        names = [line for tree in toctrees for line in tree.split("```")[0].splitlines() if line and line[0] != ":"]
        listed |= {(page.parent / f"{name}.md").resolve() for name in names}
    assert pages.COMMENT.search((ROOT / "docs" / "index.md").read_text())
    assert [page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts and page not in listed] == []


def test_the_reference_has_every_command_and_option():
    text = part("commands").reference()
    assert "## `build-ops`" in text and "## `opforge cache explain`" in text and "## `opforge key new`" in text
    assert "| `--target TARGET` | A device and its architectures" in text
    assert "| `--cpu-level` | Short for --target cpu:LEVEL. Repeatable. One of x86-64, " in text
    assert "\b" not in text and "--quiet" not in text
    assert "| `--json FILE` | " in text and "| `--json` |" not in text
    assert "| `--version TEXT`" in text, "that of opforge pack, which takes a value"


def test_what_users_look_for_comes_first_in_the_reference_of_python():
    text = part("pages").module("opforge")
    names = re.findall(r"^\.\. auto(?!module)\w+:: opforge\.(\w+)$", text, re.MULTILINE)
    assert names[:3] == ["load", "load_inline", "OpBuilder"] and sorted(names) == sorted(opforge.__all__)


SEARCHED = {
    "stale": "faq.md",
    "rebuilt": "faq.md",
    "notebook": "loading.md",
    "windows": "install.md",
    "uninstall": "install.md",
    "pip install": "install.md",
    "pod": "deploying.md",
    "kubernetes": "deploying.md",
    "undefined symbol": "faq.md",
    "torch/extension.h": "compat.md",
}
"""What users type into the search -> the page that they look for."""


@pytest.mark.parametrize("words", SEARCHED)
def test_a_search_for_what_users_type_leads_to_a_page_for_them(words):
    page = filled_in((ROOT / "docs" / SEARCHED[words]).read_text())
    assert f"   ! single: {words}\n" in page
    assert filled_in("<!-- site: search a, b c -->\n") == (
        "```{eval-rst}\n.. index::\n   ! single: a\n   ! single: b c\n```\n"
    )


def test_an_indented_block_of_a_docstring_is_code():
    lines = ["Text.", "", "    code()", "", "    more()", "", "Args:", "    x: A value.", ""]
    assert part("docstrings").marked_examples(lines)[:6] == ["Text.", "", "::", "", "    code()", ""]
    assert part("docstrings").marked_examples(lines).count("::") == 1
    marked = ["Text::", "", "    code()", "", "    more()"]
    assert part("docstrings").marked_examples(marked) == marked


@pytest.fixture
def built(tmp_path):
    (tmp_path / "a.html").write_text('<h1 id="top">A</h1><a href="b.html#part">B</a><a href="#top">A</a>')
    (tmp_path / "b.html").write_text(
        '<p id="part"><a href="https://elsewhere/">E</a><img src="data:image/png;base64,"></p>'
    )
    return tmp_path


def test_a_site_without_dead_links_has_no_problem(built):
    assert part("links").problems(built) == [] and part("links").main(built) == 0


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('<a href="nothing.html">', "c.html: nothing.html does not exist"),
        ('<a href="b.html#top">', "c.html: b.html#top: the page has no such anchor"),
        ('<a href="#top">', "c.html: #top: the page has no such anchor"),
        ('<a href="../outside.html">', "c.html: ../outside.html does not exist"),
        ('<img src="missing.svg">', "c.html: missing.svg does not exist"),
        ('<script src="https://cdn/x.js">', "c.html: https://cdn/x.js is loaded from elsewhere"),
        ('<link rel="stylesheet" href="//cdn/x.css">', "c.html: //cdn/x.css is loaded from elsewhere"),
    ],
)
def test_a_dead_link_and_what_is_loaded_from_elsewhere_are_problems(built, capsys, text, problem):
    (built / "c.html").write_text(text)
    assert part("links").problems(built) == [problem]
    assert part("links").main(built) == 1 and capsys.readouterr().out == f"{problem}\n"


@pytest.fixture(scope="module")
def browser():
    """Returns the path of Chromium."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    return path or pytest.skip("needs Chromium: apt install chromium")


@pytest.fixture(scope="module")
def pages(browser, tmp_path_factory):
    """Copies the site in OPFORGE_SITE. Returns its folder."""
    if not BUILT:
        pytest.skip("needs a site that `make docs` has built: OPFORGE_SITE=docs/_build, as .ci/run sets it")
    return Path(shutil.copytree(ROOT / BUILT, tmp_path_factory.mktemp("site") / "pages"))


def shown(browser, folder, address, *options):
    """Returns the document that a browser makes of a page, after its scripts have run."""
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=8000"]
    command = [browser, *flags, f"--user-data-dir={folder.parent / 'profile'}", *options, "--dump-dom", address]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.mark.parametrize("words", SEARCHED)
def test_the_built_sites_search_shows_the_page_for_users_first_and_decisions_last(browser, pages, words):
    address = f"{(pages / 'search.html').as_uri()}?q={words.replace(' ', '+')}"
    results = re.findall(r'<a href="([^"#]+)[^"]*" data-score=', shown(browser, pages, address))
    assert results[0] == f"docs/{SEARCHED[words].removesuffix('.md')}.html"
    is_decision = [result.startswith("docs/decisions/") for result in results]
    assert is_decision == sorted(is_decision)


PROBE = """<script>addEventListener("load", () => {
  const look = element => getComputedStyle(element);
  const links = [...document.querySelectorAll("article :is(p, li, td) > a:not(.headerlink)")];
  const isUnderlined = ({textDecorationLine, textDecorationColor, color}) =>
    textDecorationLine === "underline" && textDecorationColor === color;
  const sections = [...document.querySelectorAll(".sidebar-tree .caption")];
  parent.postMessage({
    width: innerWidth,
    scrolled: document.documentElement.scrollWidth,
    scheme: look(document.body).colorScheme,
    plain: links.filter(link => !isUnderlined(look(link))).map(link => link.textContent),
    uncolored: links.filter(link => look(link).color === look(link.parentElement).color).map(link => link.textContent),
    codes: document.querySelectorAll("article div.highlight").length,
    buttons: document.querySelectorAll("article div.highlight button.copy").length,
    reference: sections.find(title => title.textContent === "Reference").getBoundingClientRect().top,
    icon: document.querySelector("link[rel~=icon]").href.split("/").pop().split("?")[0],
  }, "*");
});</script></body>"""
"""Reports what only a browser knows of a page to the one around it."""
FRAME = """<!doctype html><meta name="color-scheme" content="light dark"><body><script>
  addEventListener("message", event => { document.body.textContent = JSON.stringify(event.data); });
</script><iframe src="PAGE" style="width: WIDTHpx; height: 800px; border: 0"></iframe></body>"""
"""A page in a frame: a window of Chromium without a screen is no narrower than 500 px."""


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1280, "dark")])
@pytest.mark.parametrize("name", ["index", "loading", "reference/commands", "reference/python", "bench"])
def test_a_page_fits_a_phone_and_a_screen_in_both_themes(browser, pages, name, width, scheme):
    page = pages / "docs" / f"{name}.html"
    probed, frame = page.with_name(f"{page.stem}-probed.html"), pages / "frame.html"
    probed.write_text(page.read_text().replace("</body>", PROBE))
    frame.write_text(FRAME.replace("PAGE", probed.as_uri()).replace("WIDTH", str(width)))
    options = ["--window-size=1400,900", *["--blink-settings=preferredColorScheme=0"] * (scheme == "dark")]
    (seen,) = re.findall(r"<body>(\{.*\})</body>", shown(browser, pages, frame.as_uri(), *options))
    look = json.loads(html.unescape(seen))
    assert (look["width"], look["scheme"], look["icon"]) == (width, scheme, "icon.svg")
    assert look["scrolled"] <= width, "nothing but a table or a block of code scrolls sideways"
    assert (look["plain"], look["uncolored"]) == ([], []), "a link is seen to be one"
    assert look["buttons"] == look["codes"] > 0
    assert look["reference"] < 800, "Reference is seen without scrolling the sidebar"
