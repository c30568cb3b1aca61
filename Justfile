# Every command of the project. `./dev WORD` makes .venv first and then runs `just WORD`.

set shell := ["bash", "-euo", "pipefail", "-c"]
export PATH := justfile_directory() / ".venv/bin" + ":" + env_var("PATH")

# list the commands
default:
    @just --list --unsorted

# everything that must hold: lints, types, imports, tests
test: check

# the gate: lints, types, import contracts, the whole test suite
check: lint
    pytest -n 2

# lints, types, import contracts
lint:
    ruff check .
    ruff format --check .
    mypy
    lint-imports

# put the code into our format
fmt:
    ruff check --fix .
    ruff format .

# renew the pinned requirements
lock:
    uv pip compile -q --no-header --universal --generate-hashes --python-version 3.11 pyproject.toml --no-emit-index-url -o requirements.txt
    uv pip compile -q --no-header --universal --generate-hashes --python-version 3.11 pyproject.toml --group dev --no-emit-index-url -o requirements-dev.txt
