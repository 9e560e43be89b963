import errno

import pytest

from ister.core.errors import (
    CorruptLogError,
    DiskFullError,
    InvalidRequestError,
    MissingObjectError,
    PoisonedError,
    PutUnknownError,
    ResourceExhaustedError,
    StoreRefusedError,
    StoreUnavailableError,
)
from ister.core.retry import TRANSIENT_ERRNOS, backoff_s, is_transient


@pytest.mark.parametrize(
    "error",
    [
        *[OSError(number, "busy") for number in TRANSIENT_ERRNOS],
        MemoryError(),
        DiskFullError("a"),
        ResourceExhaustedError("open a", "Too many open files"),
        StoreUnavailableError("s3", "list", "503"),
        StoreRefusedError("s3", "list", "expired token"),
    ],
    ids=repr,
)
def test_what_may_pass_by_itself_is_transient(error):
    assert is_transient(error)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EIO, "input/output error"),
        FileNotFoundError(errno.ENOENT, "gone"),
        PoisonedError("a", "sync failed"),
        CorruptLogError("a", 0, 0, "checksum"),
        MissingObjectError("a", "s3"),
        PutUnknownError("s3", "a", "timeout"),
        InvalidRequestError("no"),
        ValueError(),
    ],
    ids=repr,
)
def test_damage_bad_requests_and_unknown_outcomes_are_not_transient(error):
    assert not is_transient(error)


def test_the_delay_doubles_up_to_its_limit():
    assert [backoff_s(attempts, 60.0) for attempts in (1, 2, 3, 6, 7, 100)] == [1.0, 2.0, 4.0, 32.0, 60.0, 60.0]
    assert backoff_s(3, 60.0, first_s=0.5) == 2.0
