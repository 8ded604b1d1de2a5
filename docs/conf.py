"""Settings of the documentation site. `make docs` builds it, from the root of the checkout."""

from __future__ import annotations

import sys
from pathlib import Path

import opforge

sys.path.insert(0, str(Path(__file__).parent))

project = "opforge"
author = "the opforge authors"
release = version = opforge.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "opforge_docs"]

# The sources are those of the whole checkout, so that a relative link works on a forge and on the site alike.
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**.md", "benchmarks/**.md", "examples/*/README.md"]
exclude_patterns = [
    *(".*", "*.egg-info", "build", "dist", "docs/_build", "src", "tests"),
    *("accelerator", "builders", "cache", "ops", "packages", "remote"),
]

myst_heading_anchors = 4  # the anchors that forges give to headings
highlight_language = "none"  # of a block without a language: commands and what they print
pygments_style, pygments_dark_style = "friendly", "native"

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
smartquotes = False  # it would write two hyphens of an option as a dash
default_role = "code"  # `name` in a docstring

html_theme = "furo"
html_title = f"opforge {release}"
html_copy_source = False
html_show_copyright = html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
html_static_path = ["opforge_docs/static"]
html_css_files = ["site.css"]
html_js_files = ["search.js", "copy.js"]
html_favicon = "opforge_docs/static/icon.svg"
html_search_scorer = str(Path(__file__).parent / "opforge_docs/static/scorer.js")
html_extra_path = ["opforge_docs/root"]
