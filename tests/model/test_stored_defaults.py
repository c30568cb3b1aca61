"""Names and defaults are part of the log format: they never change once stored.

The internal form leaves out what equals its default, so another default would give old entries another meaning. New
fields and new records are fine; `python -m tests.model.test_stored_defaults` adds them to the file.
"""

from __future__ import annotations

import json
from typing import Any

from msgspec import NODEFAULT

from fedsched.model.declare import fields_of
from fedsched.model.plain_form import to_plain
from tests.model.fixtures import FOLDER
from tests.model.strategies import all_records

FILE = FOLDER / "stored_defaults.json"


def now() -> dict[str, dict[str, Any]]:
    return {
        kind.__qualname__: {
            info.internal_name: "(required)" if info.default is NODEFAULT else _written(info.default)
            for info in fields_of(kind)
        }
        for kind in all_records()
    }


def _written(default: Any) -> Any:
    plain = to_plain(default)
    return f"bytes {plain.hex()}" if isinstance(plain, bytes) else plain


def test_no_stored_name_or_default_has_changed() -> None:
    current = now()

    for record, fields in json.loads(FILE.read_text()).items():
        for name, default in fields.items():
            assert name in current[record], f"{record}.{name} is gone"
            assert current[record][name] == default, f"the default of {record}.{name} changed"


def test_every_record_and_field_is_on_file() -> None:
    stored = json.loads(FILE.read_text())

    missing = [
        f"{kind}.{name}" for kind, fields in now().items() for name in fields if name not in stored.get(kind, {})
    ]

    assert missing == [], "run `python -m tests.model.test_stored_defaults`"


if __name__ == "__main__":
    FILE.write_text(json.dumps(now(), indent=1, sort_keys=True) + "\n")
