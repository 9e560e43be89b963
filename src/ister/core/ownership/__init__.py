"""Ownership: who may serve a subscription, and while which lease holds."""
