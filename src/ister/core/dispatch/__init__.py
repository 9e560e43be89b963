"""Dispatch of a subscription: which consumer gets which message, and when again."""
