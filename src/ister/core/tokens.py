"""How a pipeline knows that it is its broker's own child, and proves it: then it is on the same machine."""

TOKEN_VARIABLE = "ISTER_PIPELINE_TOKEN"  # noqa: S105  # the variable's name
"""Where the child finds the token."""
PARENT_VARIABLE = "ISTER_PIPELINE_PARENT"
"""Set for a child whose stdin is open as long as its parent lives."""
TOKEN_KEY = "ister-token"  # noqa: S105  # the name of the header, not the token
"""The request metadata in which it sends it."""
