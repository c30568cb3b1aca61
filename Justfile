# Every command of the project. `./dev WORD` makes .venv first and then runs `just WORD`.

set shell := ["bash", "-euo", "pipefail", "-c"]
export PATH := justfile_directory() / ".venv/bin" + ":" + env_var("PATH")

# list the commands
default:
    @just --list --unsorted

# a tour of two federated regions: a job for the other one, a rollout in both, a leader that is killed
demo:
    @fedsched demo

# everything that must hold, as a newcomer runs it
test: check

# the gate: lints, types, import contracts, the whole test suite on two cores
check: lint
    pytest -n 2 --dist worksteal

# tests whose every run does less of the same, with all of it (a few minutes)
long *MORE:
    FEDSCHED_TESTS_LONG=1 pytest -n 2 --dist worksteal tests/e2e tests/chaos tests/sim tests/federation tests/raft tests/scheduler tests/wan {{ MORE }}

# lints, format, types, import contracts
lint:
    ruff check .
    ruff format --check .
    mypy
    lint-imports

# put the code into our format
fmt:
    ruff check --fix .
    ruff format .

# branch coverage, processes that tests start included: 100 % of raft's deciding modules, 90 % of everything
coverage:
    coverage erase
    coverage run -m pytest -n 2 -m "not sim and not bare"
    coverage run -m fedsched.sim run --seeds 40
    coverage run -m fedsched.sim.daemons --seeds 20
    coverage run -m fedsched.sim.fleet_run --seeds 10
    coverage run -m fedsched.sim.federation_run --seeds 4
    -coverage combine -q
    coverage report --fail-under 90
    coverage report --fail-under 100 --include 'fedsched/raft/core.py,fedsched/raft/ground.py,fedsched/raft/leading.py,fedsched/raft/elections.py,fedsched/raft/following.py,fedsched/raft/office.py,fedsched/raft/progress.py,fedsched/raft/quorum.py,fedsched/raft/reads.py,fedsched/raft/log.py,fedsched/raft/unsettled.py,fedsched/raft/membership.py,fedsched/raft/autopilot.py,fedsched/raft/digests.py,fedsched/raft/flaps.py,fedsched/raft/campaign.py,fedsched/raft/compaction.py'

# simulate SEEDS worlds of Raft servers and as many regions and federations under faults; anything found is printed with the command that replays it
sim SEEDS="1000" *MORE:
    python -m fedsched.sim run --seeds {{ SEEDS }} --jobs 2 {{ MORE }}
    python -m fedsched.sim.fleet_run --seeds {{ SEEDS }} --jobs 2

# plant every known kind of bug, one at a time, and demand that the simulator finds it
sim-mutants *MORE:
    python -m fedsched.sim mutants {{ MORE }}

# a region's schedulers, leader services and modelled clients under virtual time, from a seed
sim-region SEEDS="100" *MORE:
    python -m fedsched.sim.fleet_run --seeds {{ SEEDS }} {{ MORE }}

# several regions, the network between them and gossip, with rollouts and long cuts besides, from a seed
sim-federation SEEDS="1000" *MORE:
    python -m fedsched.sim.federation_run --seeds {{ SEEDS }} --jobs 2 {{ MORE }}

# pools of gossip members, and rollouts of multi-region jobs, each by itself, from a seed (a few minutes for a thousand)
sim-pools SEEDS="1000" *MORE:
    python -m fedsched.sim.pool_seeds --seeds {{ SEEDS }} --jobs 2 {{ MORE }}
    python -m fedsched.sim.rollout_seeds --seeds {{ SEEDS }} --jobs 2 {{ MORE }}

# whole Raft daemons under virtual time: sockets, disks, crashes and cancellation, from a seed
sim-daemons SEEDS="200" *MORE:
    python -m fedsched.sim.daemons --seeds {{ SEEDS }} {{ MORE }}
    python -m fedsched.sim.daemon_mutants

# real servers under kill -9, pauses and cut links, with every history checked
chaos *MORE:
    python -m tests.chaos {{ MORE }}

# kill client agents with -9 KILLS times, at random and at each step of a task's life; no task may notice (ten to twenty minutes)
kills KILLS="500" *MORE:
    python -m tests.kills --kills {{ KILLS }} {{ MORE }}

# numbered log lines from a task to a reader, through small files, cuts, killed agents and servers (ten minutes)
lines LINES="1000000" *MORE:
    python -m tests.kills.lines --lines {{ LINES }} {{ MORE }}

# a task writes 50 MB/s, a reader takes 1 KiB/s of it for a minute; the agent's memory may not grow by 32 MiB
slow-reader *MORE:
    python -m tests.kills.slow_reader {{ MORE }}

# AGENTS real agents on loopback: how soon all know who is there, who was killed and who has left (two minutes)
gossip-agents AGENTS="48" *MORE:
    python -m tests.wan.agents --agents {{ AGENTS }} {{ MORE }}

# two regions of real servers, one cut off or stalled for longer than any timeout, and back (eight minutes; needs root)
cut-off *MORE:
    python -m tests.wan.cut_off {{ MORE }}

# measure: just bench raft, just bench store --json, ...
bench *WORDS:
    fedsched bench {{ WORDS }}

# write docs/reference anew from the code
reference:
    python -m fedsched.cli.docs

# renew the pinned requirements
lock:
    uv pip compile -q --no-header --universal --generate-hashes --python-version 3.11 pyproject.toml --no-emit-index-url -o requirements.txt
    uv pip compile -q --no-header --universal --generate-hashes --python-version 3.11 pyproject.toml --group dev --no-emit-index-url -o requirements-dev.txt
