"""The page of a run: what it holds, and how Chromium sees it."""

from __future__ import annotations

import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from support.bench import bench_runs
from support.paths import CHECKOUT

pytest.importorskip("matplotlib")
TEXT = "text"
SIZES = (1 << 16, 1 << 20, 1 << 24)


def results(factor=1.0, **fields):
    return [
        bench_runs.result(
            ours=[factor * size * (1 + number / 50) / 1e9 for number in range(9)],
            copy=[size * (1 + number / 90) / 0.9e9 for number in range(9)],
            size=size,
            goals={"baseline": 0.8},
            **fields,
        )
        for size in SIZES
    ]


@pytest.fixture(scope="module")
def page():
    from opforge.bench.page import page

    new = [*results(), *results(case="<step> & more", unit="us"), results(op="AsyncIO")[1]]
    new[0].missing["DeepSpeed"] = "not installed"
    return page(bench_runs.run(*new), bench_runs.run(*results(1.4)))


@pytest.fixture(scope="module")
def plots(page):
    return [ElementTree.fromstring(part) for part in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]


def test_the_page_is_a_single_file_without_scripts_and_without_addresses(page):
    assert "<script" not in page
    assert not re.findall(r"""(?:src|href)=["'](?!#|data:)""", page)
    assert not re.findall(r"url\((?!#)", page)
    assert "http" not in page
    assert "prefers-color-scheme: dark" in page
    assert "DeepSpeed (CPUAdam): not installed" in page


def test_every_plot_has_a_title_axes_and_units(plots):
    assert len(plots) == 7, "a case of one size has one plot: that of its samples"
    for plot in plots:
        words = [("".join(text.itertext())).strip() for text in plot.iter(TEXT)]
        title = plot[0].text
        assert title.startswith(("CPUAdam: ", "AsyncIO: "))
        assert any(word.startswith(("size (elements)", "time of a call (")) for word in words)
        assert any(word in ("bandwidth (GB/s)", "time of a call (us)", "times as fast", "contender") for word in words)
        assert plot.get("viewBox")
        assert plot.get("width") is None


def test_the_baseline_the_goal_and_the_earlier_run_are_drawn_in(plots):
    words = {("".join(text.itertext())).strip() for text in plots[0].iter(TEXT)}
    assert {"opforge", "copy (baseline)", "opforge, before", "copy (baseline), before"} - words <= {
        "copy (baseline), before"
    }
    words = {("".join(text.itertext())).strip() for text in plots[1].iter(TEXT)}
    assert {"copy", "copy, before", "goal"} <= words


def test_the_words_of_the_page_are_those_of_its_documentation(page):
    """A copy is exceeded by a step in place: it is no ceiling."""
    assert "median and its 95 % confidence interval" in page and "<summary>Table</summary>" in page
    assert "ceiling" not in page.lower()
    documented = Path(CHECKOUT, "docs", "bench.md").read_text()
    assert "median and its 95 % confidence interval" in " ".join(documented.split()) and "ceiling" not in documented


def test_colors_are_the_pages_and_identifiers_are_unique(page, plots):
    assert not re.findall(r"#0[0-9]{2}[0-9]{3}", page.partition("</style>")[2].replace("&#", ""))
    assert "var(--series0)" in page and "currentColor" in page
    identifiers = re.findall(r'\sid="([^"]+)"', page)
    assert len(identifiers) == len(set(identifiers))
    for reference in re.findall(r'(?:href="#|url\(#)([^")]+)', page):
        assert reference in identifiers


def test_a_contender_has_one_color_in_all_plots():
    from opforge.bench.plots import SERIES, colors

    first, second = bench_runs.result(), bench_runs.result(op="AsyncIO")
    first.samples["torch"] = first.samples["DeepSpeed"] = [1.0] * 3
    second.samples = {"opforge": [1.0] * 3, "fio": [1.0] * 3, "DeepSpeed": [1.0] * 3}
    chosen = colors([first, second])
    assert len(set(chosen.values())) == len(chosen) == 5 and max(chosen.values()) < len(SERIES)
    many = [bench_runs.result(), *(bench_runs.result(op=str(number)) for number in range(6))]
    for number, result in enumerate(many):
        result.samples |= {f"rival {number}, {other}": [1.0] * 3 for other in range(4)}
    chosen = colors(many)
    for result in many:
        assert len({chosen[name] for name in result.samples}) == len(result.samples), "two of one case look alike"


def test_a_change_is_in_the_page(page):
    assert "3 of 3 changed beyond the spread of both runs." in page
    assert re.search(r'<span class="good">\+\d+%, better</span>', page)


def test_the_same_run_makes_the_same_page():
    from opforge.bench.page import page

    run = bench_runs.run(results()[0])
    assert page(run) == page(run)


@pytest.mark.parametrize("width", [400, 1200])
def test_chromium_shows_the_page_without_a_message_and_without_scrolling_sideways(page, tmp_path, width):
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not browser:
        pytest.skip("needs Chromium: apt install chromium")
    # The page itself has no script. This one reports what only a browser knows.
    probe = (
        "<script>document.title = [document.documentElement.scrollWidth, innerWidth,"
        " document.querySelectorAll('svg').length, ...[...document.querySelectorAll('svg')]"
        ".map(plot => Math.round(plot.getBoundingClientRect().width))].join(' ')</script></body>"
    )
    path = tmp_path / "page.html"
    path.write_text(page.replace("</body>", probe), encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr"]
    command = [browser, *options, f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},900"]
    done = subprocess.run(
        [*command, "--dump-dom", path.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    assert "CONSOLE" not in done.stderr
    title = re.search("<title>([0-9 ]+)</title>", done.stdout)
    scroll, inner, count, *widths = map(int, title[1].split())
    assert count == 7
    assert scroll <= inner
    assert all(280 <= plot <= inner for plot in widths)
