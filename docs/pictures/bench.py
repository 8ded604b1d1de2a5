"""Draws docs/pictures/bench.svg: the rates of CPUAdam's step, from docs/pictures/bench.json.

`python docs/pictures/bench.py NEW.json`, with the environment that has opforge[bench], takes a file that
`opforge bench CPUAdam --json NEW.json` has written in place of the old one. Without a file it draws again.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from opforge.bench import page, plots, results

FOLDER = Path(__file__).parent
CASE = ("step", "float32")
FONT = 'text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif; }'


def shortened(path: Path) -> str:
    """Returns the text of a file of `opforge bench --json` with the results of the drawn case alone."""
    run = json.loads(path.read_text())
    run["results"] = [result for result in run["results"] if (result["case"], result["dtype"]) == CASE]
    return json.dumps(run) + "\n"


def picture(path: Path) -> str:
    """Returns the plot of such a file, as an SVG that follows the browser's color scheme."""
    drawn = sorted(results.read(str(path)).results, key=lambda result: result.size)
    colors = re.sub(r"\s+", " ", page.STYLE[: page.STYLE.index("body {")])
    style = f"<style>{colors.replace(':root {', ':root { color: var(--text);')}{FONT}</style>"
    element = plots.rates(drawn).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" width="560" ', 1)
    return "\n".join(line.rstrip() for line in element.replace("</title>", f"</title>{style}", 1).splitlines()) + "\n"


if __name__ == "__main__":
    if sys.argv[1:]:
        (FOLDER / "bench.json").write_text(shortened(Path(sys.argv[1])))
    (FOLDER / "bench.svg").write_text(picture(FOLDER / "bench.json"))
