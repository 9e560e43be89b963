"""Settings of a log, with the specified defaults."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from pathlib import Path

from ister.core import defaults
from ister.core.errors import InvalidConfigError
from ister.core.names import log_file_name_problem


class SyncMode(Enum):
    """When written bytes are synced."""

    ALWAYS = "always"
    PERIODIC = "periodic"
    NONE = "none"


class AckLevel(IntEnum):
    """What an append waits for; a higher level includes the lower ones."""

    WAL = 1
    """Written to the kernel: survives kill -9."""
    FSYNC = 2
    """Synced in a group commit: survives power loss."""
    CLOUD = 3
    """In a completed object: survives the loss of the machine. The log itself waits for FSYNC, its storage for the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WalConfig:
    """The settings of one log; without `dir` it lives in memory only.

    `level` is what an append waits for. It defaults to what `sync_mode` implies (always: FSYNC, else WAL) and can only
    raise it. `topic` is put into messages and errors.
    """

    dir: Path | str | None = None
    file_name: str = defaults.LOG_FILE_NAME
    cache_capacity: int = defaults.CACHE_CAPACITY
    fsync_interval_ms: int = defaults.FSYNC_INTERVAL_MS
    max_batch_bytes: int = defaults.WRITE_BYTES_MAX
    max_bytes: int = defaults.LOG_FILE_BYTES_MAX
    max_hours: float | None = None
    sync_mode: SyncMode | str = defaults.SYNC_MODE
    level: AckLevel | None = None
    topic: str = ""

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "sync_mode", SyncMode(self.sync_mode))
        except ValueError:
            raise InvalidConfigError("sync_mode", f"{self.sync_mode!r} is none of always, periodic, none") from None
        if self.dir is not None:
            object.__setattr__(self, "dir", Path(self.dir))
        if problem := log_file_name_problem(self.file_name):
            raise InvalidConfigError("file_name", f"{self.file_name!r} {problem}")
        for setting, least in (
            ("cache_capacity", 1),
            ("fsync_interval_ms", 1),
            ("max_batch_bytes", 1024),
            ("max_bytes", 4096),
        ):
            value = getattr(self, setting)
            if not isinstance(value, int) or value < least:
                raise InvalidConfigError(setting, f"{value!r} must be a whole number of at least {least}")
        if self.dir is None and self.level is not None and self.level >= AckLevel.FSYNC:
            raise InvalidConfigError("level", "a log in memory cannot be synced; give it a dir, or level WAL")
        if self.max_hours is not None and not self.max_hours > 0:
            raise InvalidConfigError("max_hours", f"{self.max_hours!r} must be more than 0")

    @property
    def ack_level(self) -> AckLevel:
        """What an append waits for, with the default filled in."""
        implied = AckLevel.FSYNC if self.sync_mode is SyncMode.ALWAYS else AckLevel.WAL
        return implied if self.level is None else max(self.level, implied)

    @property
    def name(self) -> str:
        """What errors call this log."""
        return self.topic or str(self.dir or "in memory")
