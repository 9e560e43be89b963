"""Tiers of a topic: which one serves a read, what may be deleted, how a range is split."""
