"""python -m tests.kills [--kills 500] [--lanes 2] [--seed 1]: see `run`."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.kills.run import run_lanes


def main() -> int:
    parser = argparse.ArgumentParser(description="kill client agents again and again; no task may notice")
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--lanes", type=int, default=2, help="agents that are killed side by side")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fedsched-kills-") as directory:
        outcome = run_lanes(Path(directory), given.kills, given.seed, given.lanes, lambda text: print(text, flush=True))
    violations = outcome.violations()
    print(f"steps: {outcome.steps_text() or 'none'}")
    print(f"{outcome.text()}, in {time.monotonic() - began:.0f} s: {'FAILED' if violations else 'no task noticed'}")
    for violation in violations:
        print(f"  {violation}")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
