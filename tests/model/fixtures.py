"""The recorded data that the model is held against."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "fixtures" / "model"


def load(name: str) -> dict[str, list[Any]]:
    data: dict[str, list[Any]] = json.loads((FOLDER / f"{name}.json").read_text())
    return data
