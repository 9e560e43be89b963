"""Say why a value is refused, in our words: pydantic's own messages would repeat the value."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


def reason(detail: ErrorDetails) -> str:
    """Return what a value must be, and nothing of what it is."""
    kind, bounds = detail["type"], detail.get("ctx", {})
    if kind.startswith("int"):
        return "must be a whole number"
    if kind.startswith("bool"):
        return "must be true or false"
    if kind.startswith(("float", "finite")):
        return "must be a number"
    match kind:
        case "greater_than_equal":
            return f"must be at least {bounds['ge']:,}"
        case "greater_than":
            return f"must be more than {bounds['gt']:,}"
        case "less_than_equal":
            return f"must be at most {bounds['le']:,}"
        case "literal_error":
            return f"must be one of {bounds['expected']}".replace("'", "")
        case "string_too_short" | "too_short":
            return "must not be empty; leave the line out for the default"
        case "string_too_long" | "too_long":
            return f"is too long; at most {bounds['max_length']:,} are taken"
        case "value_error":
            return str(bounds["error"])
    return "has a value of the wrong kind; see docs/config.md"
