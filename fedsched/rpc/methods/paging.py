"""What requests and replies of lists have in common."""

from __future__ import annotations

from typing import Annotated

from fedsched.model.declare import Record


class ListRequest(Record):
    """Asks for a page of a list."""

    prefix: Annotated[str, "Only ids that begin with this."] = ""
    next_token: Annotated[str, "Where the page begins; from the reply before."] = ""
    per_page: Annotated[int, "How many at most; 0 for as many as the server gives at once."] = 0
    reverse: Annotated[bool, "Newest, or last by id, first."] = False


class ListReply(Record):
    """A page of a list."""

    next_token: Annotated[str, "Where the next page begins; empty at the end."] = ""
