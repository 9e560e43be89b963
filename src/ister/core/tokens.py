"""How a pipeline proves to its broker that it is its own child, and so is on the same machine."""

TOKEN_VARIABLE = "ISTER_PIPELINE_TOKEN"  # noqa: S105  # the variable's name
"""Where the child finds the token."""
TOKEN_KEY = "ister-token"  # noqa: S105  # the name of the header, not the token
"""The request metadata in which it sends it."""
