"""Environment variables between our own processes; settings are read by `ister.config.load` alone.

A pipeline that a broker has started proves it by a token: then both run on the same machine.
"""

TOKEN_VARIABLE = "ISTER_PIPELINE_TOKEN"  # noqa: S105  # the variable's name
"""The token of a child pipeline."""
TOKEN_KEY = "ister-token"  # noqa: S105  # the name of the header, not the token
"""The request metadata that carries the token."""
PARENT_VARIABLE = "ISTER_PIPELINE_PARENT"
"""Set for a child whose stdin stays open as long as its parent lives."""
SECRETS_VARIABLE = "ISTER_EXECUTOR_SECRETS"
"""Secrets of Spark executors, by their environment alone: a JSON object of `Reach`'s fields `files` and `options`."""
