"""Planted bugs: the real code with one thing wrong, to see whether the simulator notices (F42).

A mutant names a function, the text to replace in its source and the replacement. If the text is not there exactly once
any more, the code has changed and the mutant must be brought up to date: that is an error, not a pass.
"""

from __future__ import annotations
import __future__

import inspect
import textwrap
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ister.core.frames import kernels
from ister.core.frames.recover import Scanner
from ister.wal import directory
from ister.wal.active_files import ActiveFiles
from ister.wal.reader import WalReader
from ister.wal.wal import Wal
from ister.wal.write_batch import WriteBatch

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Mutant:
    """One planted bug."""

    name: str
    owner: object
    function: str
    old: str
    new: str

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Put the bug into the running code, and take it out again."""
        original = inspect.getattr_static(self.owner, self.function)
        plain = original.fget if isinstance(original, property) else getattr(original, "__func__", original)
        plain = getattr(plain, "py_func", plain)
        source = textwrap.dedent(inspect.getsource(plain)).replace("cache=True", "cache=False")
        if source.count(self.old) != 1:
            raise LookupError(f"mutant {self.name}: {self.old!r} is {source.count(self.old)} times in {self.function}")
        scope: dict[str, object] = {}
        code = compile(
            source.replace(self.old, self.new), self.name, "exec", flags=__future__.annotations.compiler_flag
        )
        exec(code, plain.__globals__, scope)
        setattr(self.owner, self.function, scope[self.function])
        try:
            yield
        finally:
            setattr(self.owner, self.function, original)


MUTANTS = [
    Mutant("acknowledges fsync level after the write", Wal, "_flush", "self._waits_for_sync", "False"),
    Mutant(
        "claims what was written during the sync",
        Wal,
        "_sync_done",
        "self._synced_up_to(target.offset)",
        "self._synced_up_to(self.next_offset)",
    ),
    Mutant(
        "retries a failed sync",
        Wal,
        "_sync_done",
        "if error is not None:",
        "if error is not None and disk.sync() is None:",
    ),
    Mutant("rotates without syncing the old file", ActiveFiles, "make_next", "self._file.sync()", "pass"),
    Mutant(
        "rotates without syncing the directory",
        ActiveFiles,
        "make_next",
        "self.files.create_durable(path)",
        "self.files.create(path)",
    ),
    Mutant(
        "leaves a partial frame after a short write",
        ActiveFiles,
        "_truncate_back",
        "self._file.truncate(self.pos)",
        "pass",
    ),
    Mutant(
        "refuses before the cut is on disk",
        Wal,
        "_refuse_durably",
        "self._waiters.refused.append((waiters, error))",
        "fail(waiters, error)",
    ),
    Mutant("starts at offset 0 again", directory, "_rescue", "found.synced_offset, directory", "0, directory"),
    Mutant(
        "drops whole frames that no marker attests",
        directory,
        "_rescue",
        "found.synced_pos, found.end, segment",
        "found.end, found.end, segment",
    ),
    Mutant("serves a tail that was never synced", directory, "_rescue", "file.sync()", "pass"),
    Mutant(
        "renames the rescued file without syncing its name",
        directory,
        "_rescue",
        "files.sync_directory(directory)",
        "pass",
    ),
    Mutant(
        "trusts an unattested tail of a clean file",
        directory,
        "_open_locked",
        "and found.next_offset == found.synced_offset",
        "",
    ),
    Mutant("calls every damage corrupt", Scanner, "finish", "or self._evidence >= 0", "or True"),
    Mutant(
        "writes the marker before the sync",
        Wal,
        "_start_sync",
        "self._run(",
        "disk.mark(self.next_offset, target.offset, target.pos, self.config.name); self._run(",
    ),
    Mutant(
        "forgets messages behind a pruned file",
        Wal,
        "prune",
        "segments[count + 1].first <= before",
        "segments[count].first <= before",
    ),
    Mutant("shows a reader what is not synced yet", Wal, "visible_offset", "self._waits_for_sync", "False"),
    Mutant(
        "skips what fell out of memory",
        WalReader,
        "_read_run",
        "chunk, scan = await self._read_file(upto)",
        "self._next = wal.cache.start; continue",
    ),
    Mutant(
        "repeats a message after a file read",
        WalReader,
        "_read_run",
        "self._next = scan.next_offset",
        "self._next = scan.next_offset - (chunk.start % 3 == 2)",
    ),
    Mutant(
        "stamps with a clock that steps back",
        Wal,
        "_stamp",
        "max(self.append_time_us, self._clock.wall_us())",
        "self._clock.wall_us()",
    ),
    Mutant(
        "forgets the last append time at restart",
        directory,
        "_open_locked",
        "found.append_time_us or _last_append_time(files, segments[:-1], last.first)",
        "0",
    ),
    Mutant(
        "gives a cancelled append's offset away again",
        WriteBatch,
        "stop",
        "len(self.waiters)",
        "sum(not w.cancelled() for w in self.waiters)",
    ),
    Mutant("continues behind a marker that may be a ghost", directory, "_continue_file", "if markers:", "if False:"),
    Mutant("skips the checksum", kernels, "scan", "frame_crc(buf, at, length) != _u32(buf, at + 12)", "False"),
    Mutant("accepts a frame of another offset", kernels, "scan", "(expected >= 0 and offset != expected)", "False"),
    Mutant("forgets that a sync on the loop failed", ActiveFiles, "sync_blocking", "0.0, error", "0.0, None"),
    Mutant(
        "closes an idle file that is not synced",
        ActiveFiles,
        "close_active",
        "self._file.sync()\n    if self.attested < next_offset:",
        "if self.attested < next_offset:",
    ),
    Mutant(
        "goes on writing while its file is closed",
        Wal,
        "_flush",
        "self._operation in WITHOUT_FILE",
        'self._operation == "rotate"',
    ),
    Mutant("lowers the level of those who wait", Wal, "set_level", "await self.flush()", "pass"),
    Mutant("hides what readers have seen", Wal, "visible_offset", "max(self._shown, self._synced)", "self._synced"),
]
