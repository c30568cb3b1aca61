"""What the model cannot judge in a job because others will run it: templates, and what tasks say to their drivers.

Handed to the checks of whole jobs by whoever takes jobs in: servers at submission, `job validate` without an agent.
Clients ask the same code again when a task starts, with everything filled in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fedsched.drivers.schemas import TASK_SCHEMAS
from fedsched.model.text_checks import GRAMMAR, TextChecks


def template_problem(text: str, left: str, right: str) -> tuple[str, str] | None:
    """What is wrong with a template, with its place in it, and what would be right; None if it can be read."""
    from fedsched.template.errors import TemplateError
    from fedsched.template.render import compile_template  # few jobs have templates

    try:
        compile_template(text, left=left, right=right, denied=())
    except TemplateError as error:
        return f"line {error.line}, column {error.column} of the template: {error.wrong}", error.hint
    return None


def config_problems(driver: str, config: Mapping[str, Any]) -> Sequence[str]:
    """All that is wrong with a task's settings for a driver; nothing for one that is not built in."""
    schema = TASK_SCHEMAS.get(driver)
    return schema.problems(config) if schema is not None else ()


CONTENT: Final[TextChecks] = GRAMMAR._replace(template=template_problem, config=config_problems)
"""Everything that can be judged without a node."""
