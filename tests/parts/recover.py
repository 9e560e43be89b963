"""Recovery of a log file that is in memory as a whole."""

from ister.core.frames.recover import Scanner


def recover(data, first_offset, *, limit=None):
    scanner = Scanner(first_offset, limit=limit)
    scanner.feed(data)
    return scanner.finish()
