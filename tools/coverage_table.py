"""Write the branch coverage of each package into the page "What was tested where".

    python tools/coverage_table.py COVERAGE.json

`nox -s coverage` runs the tests, and then this script with the report of coverage.py.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/reference/tested.md"
PARTS = ("covered_lines", "num_statements", "covered_branches", "num_branches")


def coverage_table(report: dict[str, dict[str, dict[str, dict[str, int]]]]) -> str:
    """Return a table of statements and branches for each package, and for all, from a JSON report of coverage.py."""
    packages: dict[str, Counter[str]] = {}
    for path, file in report["files"].items():
        folders = path.split("embodied_env/", 1)[1].split("/")[:-1]
        name = "/".join(folders[: 2 if folders[:1] == ["extensions"] else 1])
        for package in (f"`{name}`" if name else "top level", "**all**"):
            packages.setdefault(package, Counter()).update({part: file["summary"][part] for part in PARTS})
    rows = [
        f"| {package} | {part['num_statements']:,} | {_percent(part['covered_lines'], part['num_statements'])}"
        f" | {part['num_branches']:,} | {_percent(part['covered_branches'], part['num_branches'])} |"
        for package, part in sorted(packages.items(), key=lambda item: (item[0] == "**all**", item[0]))
    ]
    head = "| package | statements | run, % | branches | taken, % |\n|---|---|---|---|---|\n"
    return head + "\n".join(rows)


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}" if whole else "-"


def main() -> None:
    table = coverage_table(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    block = f"<!-- coverage -->\nMeasured on {dt.datetime.now(dt.UTC).date()}.\n\n{table}\n<!-- end -->"
    text = PAGE.read_text(encoding="utf-8")
    text = re.sub(r"<!-- coverage -->.*?<!-- end -->", lambda _: block, text, flags=re.DOTALL)
    PAGE.write_text(text, encoding="utf-8")
    print(table)


if __name__ == "__main__":
    main()
