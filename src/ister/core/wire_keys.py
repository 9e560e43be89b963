"""gRPC metadata keys by which Ister extends the Danube protocol: clients may ignore them."""

OFFSET_KEY = "ister-offset"
"""Trailing metadata of SendMessage: the offset at which the message is stored, also if its level was not reached in time."""
PENDING_LEVEL_KEY = "ister-pending-level"
"""Trailing metadata of a failed SendMessage: the message is stored, and has not reached this level (`cloud` or `lake`) yet."""
GENERATION_KEY = "ister-generation"
"""Of CreateProducer and SendMessage. In a request: only this generation of the topic is meant, and no topic is created.
In trailing metadata: the generation that the topic has."""
