"""Clients of a broker: channels, producing, the pipeline's storage service."""
