"""Cursors of subscriptions: in a file or in metadata."""
