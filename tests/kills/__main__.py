"""python -m tests.kills [--kills 500] [--seed 1]: see `run`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.kills.run import REATTACH_S, run


def main() -> int:
    parser = argparse.ArgumentParser(description="kill a client agent again and again; no task may notice")
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fedsched-kills-") as directory:
        outcome = run(Path(directory), given.kills, given.seed, lambda text: print(text, flush=True))
    print(outcome.text())
    for problem in outcome.problems:
        print(f"  {problem}")
    return 1 if outcome.problems or outcome.slowest_reattach_s > REATTACH_S else 0


if __name__ == "__main__":
    sys.exit(main())
