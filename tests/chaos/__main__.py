"""`python -m tests.chaos`: three real servers, a seeded nemesis, checked histories. Non-zero exit on any violation."""

from __future__ import annotations

import argparse
import faulthandler
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

from tests.chaos.checks import RESUME_MAX_S, RESUME_P99_S
from tests.chaos.plan import Plan, draw_plan
from tests.chaos.run import AUTO, NAMESPACES, PROXY, Chaos, choose_links, progress_line

CRASH_LOG = "harness-crash.log"
"""Where every thread stood when this process itself crashed; empty otherwise."""


def main(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    seed = secrets.randbits(32) if options.seed is None else options.seed
    plan = Plan.load(options.plan) if options.plan else draw_plan(seed, options.minutes)
    print(f"seed {plan.seed}, {plan.minutes:g} minutes, {len(plan.steps)} faults:")
    print("  " + "\n  ".join(str(step) for step in plan.steps))
    if options.only_plan:
        print(plan.to_json())
        return 0
    links, why = choose_links(options.links)
    print(f"links: {links}" + (f" ({why})" if why else ""))
    directory = (options.dir or Path(tempfile.mkdtemp(prefix="fedsched-chaos-"))).absolute()
    directory.mkdir(parents=True, exist_ok=True)
    print(f"plan, history and logs go to {directory}", flush=True)  # known even if this process should crash
    with (directory / CRASH_LOG).open("w") as crash_log:
        faulthandler.enable(crash_log)
        try:
            return _run(options, plan, directory, links)
        finally:
            faulthandler.disable()


def _run(options: argparse.Namespace, plan: Plan, directory: Path, links: str) -> int:
    chaos = Chaos(
        plan,
        directory,
        links=links,
        resume_p99_s=options.resume_p99,
        resume_max_s=options.resume_max,
        progress=progress_line,
    )
    report = chaos.run()
    print(report.to_json() if options.json else report.table())
    if report.has_passed and not options.keep and not options.dir:
        shutil.rmtree(directory)
    else:
        print(f"plan, history, logs and result are in {directory}", file=sys.stderr)
        print(f"repeat with: python -m tests.chaos --plan {directory / 'plan.json'}", file=sys.stderr)
    return 0 if report.has_passed else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="length of the drawn plan (default 10)")
    parser.add_argument("--seed", type=int, help="draws plan and workload (default: a new one, printed)")
    parser.add_argument("--plan", type=Path, help="replay this stored plan instead of drawing one")
    parser.add_argument(
        "--links",
        choices=[AUTO, PROXY, NAMESPACES],
        default=AUTO,
        help="what cuts the links: network namespaces (needs root), or a proxy each; auto takes the first that works",
    )
    parser.add_argument("--only-plan", action="store_true", help="print the plan and do nothing")
    parser.add_argument("--dir", type=Path, help="where to keep everything (default: a temporary place)")
    parser.add_argument("--keep", action="store_true", help="keep the directory of a run that passed, too")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--resume-p99", type=float, default=RESUME_P99_S, help="limit in s for writes to resume, p99")
    parser.add_argument("--resume-max", type=float, default=RESUME_MAX_S, help="limit in s for writes to resume, worst")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
