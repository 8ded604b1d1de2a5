"""`python tests/facade COMMAND`: the long comparisons of the facade with torch's own headers."""

import argparse
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from facade import differential, expressions, further, module_record, mutants, projects, rows, wheels


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/facade", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    others = commands.add_parser("projects", help="build public projects both ways and compare what they compute")
    others.add_argument("names", nargs="*", help=f"some of: {', '.join(projects.PROJECTS)}")
    others.add_argument("--folder", type=Path, default=Path(".cache/facade"), help="where sources and builds are kept")
    others.add_argument(
        "--other", metavar="PYTHON", help="an interpreter with another torch: the same libraries run there"
    )
    others.add_argument("--only-facade", action="store_true", help="do not build on torch's headers")
    built = commands.add_parser("wheels", help="one wheel of each project from its own setup.py, beside torch alone")
    built.add_argument("names", nargs="*", help=f"some of: {', '.join(wheels.USES)}")
    built.add_argument("--folder", type=Path, default=Path(".cache/facade"), help="where sources and builds are kept")
    built.add_argument("--other", metavar="PYTHON", help="an interpreter with another torch: the same wheels run there")
    row = commands.add_parser(
        "rows", help="build projects by their setup.py on the facade and by torch; run their tests"
    )
    row.add_argument("names", nargs="*", help=f"some of: {', '.join(rows.ROWS)}")
    row.add_argument("--folder", type=Path, default=Path(".cache/facade"), help="where sources and builds are kept")
    row.add_argument("--other", action="append", default=[], metavar="PYTHON", help="another torch's. Repeatable.")
    ten = commands.add_parser("further", help="which of the further projects compile, and each line that keeps one")
    ten.add_argument("names", nargs="*", help=f"some of: {', '.join(further.DIGESTS)}")
    ten.add_argument("--folder", type=Path, default=Path(".cache/facade/further"), help="where archives are kept")
    defects = commands.add_parser("mutants", help="put defects into the headers: the comparison must find each")
    defects.add_argument("names", nargs="*", help="some of the mutants, by their names")
    operators = commands.add_parser("differential", help="every operator against torch's own headers")
    operators.add_argument(
        "--folder", type=Path, default=Path(".cache/facade"), help="where sources and builds are kept"
    )
    operators.add_argument("--count", type=int, default=12, help="how often each call's arguments are drawn")
    operators.add_argument("--part", type=int, action="append", default=[], help="one part of the calls alone")
    operators.add_argument("--calls", metavar="REGEX", default="", help="the calls of such names alone")
    operators.add_argument(
        "--made",
        type=Path,
        help="the folder of another torch's run: its libraries on the facade run with this one",
    )
    module = commands.add_parser("record", help="record what functions of a pybind11 module give on torch's headers")
    module.add_argument("--folder", type=Path, default=Path(".cache/facade"), help="where the build is kept")
    recorded = commands.add_parser("record-child")
    recorded.add_argument("library", type=Path)
    expressed = commands.add_parser("expressions-child")
    expressed.add_argument("library", type=Path)
    expressed.add_argument("--record", action="store_true", help="print all outcomes")
    child = commands.add_parser("differential-child")
    child.add_argument("arguments", nargs=6)
    options = parser.parse_args()
    if options.command == "differential-child":
        differential.child(*options.arguments)
        return 0
    if options.command == "expressions-child":
        call = module_record.load(options.library, "expressions").call
        texts = {number: text for number, (text, _) in enumerate(expressions.EXPRESSIONS)}
        print(
            json.dumps(
                expressions.outcomes(call, texts)
                if options.record
                else expressions.differences_from_python(call, in_settings=1)
            )
        )
        return 0
    if options.command == "wheels":
        return min(wheels.run(options.names, options.folder.absolute(), options.other), 1)
    if options.command == "rows":
        return min(rows.run(options.names, options.folder.absolute(), options.other), 1)
    if options.command == "further":
        return min(further.run(options.names, options.folder.absolute()), 1)
    if options.command == "mutants":
        return min(mutants.run(options.names), 1)
    if options.command == "record":
        return module_record.record(options.folder.absolute())
    if options.command == "record-child":
        print(json.dumps(module_record.outcomes(options.library)))
        return 0
    if options.command == "differential":
        folder = options.folder.absolute() / "differential"
        made = options.made and options.made.absolute() / "differential"
        os.environ[differential.CHOSEN] = options.calls
        by_hand = 0 if options.part or options.calls else differential.run_expressions(folder, made)
        return min(by_hand + differential.run(folder, options.count, options.part, made), 1)
    return min(projects.run(options.names, options.folder.absolute(), options.other, options.only_facade), 1)


if __name__ == "__main__":
    sys.exit(main())
