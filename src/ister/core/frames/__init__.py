"""Frames: the unit of the log and of objects, encoded, decoded, scanned and recovered."""
