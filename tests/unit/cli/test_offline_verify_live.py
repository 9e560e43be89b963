"""`ister wal verify` on a log that is written, pruned or rescued while it is read."""

import asyncio

import pytest
import structlog

from ister.core.frames.recover import Verdict
from ister.offline.verify_log import FileVerdict, verify_directory
from ister.wal import Wal, WalConfig
from parts.log_dir import MESSAGE, NAMES, as_json, crashed_log, flip, listing, make_log, reopen


@pytest.fixture(autouse=True)
def _logging_as_it_was():
    yield
    structlog.reset_defaults()


def test_a_log_in_use_can_be_verified_and_nothing_is_changed(tmp_path):
    async def use():
        wal = await Wal.with_config(WalConfig(dir=tmp_path, max_bytes=4096))
        try:
            for _ in range(40):
                await wal.append_batch([MESSAGE] * 5)
            await wal.sync()
            await wal.append_batch([MESSAGE] * 5)
            before = listing(tmp_path)
            result, report = as_json(tmp_path)
            assert listing(tmp_path) == before
            assert (result.exit_code, report["verdict"]) == (0, "clean")
            assert (report["stop"], report["synced_offset"]) == (205, 200)
            assert len(report["files"]) > 3
            await wal.append(MESSAGE)
        finally:
            await wal.close()

    asyncio.run(use())


def test_files_that_are_pruned_while_we_read_are_gone_not_lost(tmp_path):
    paths = make_log(tmp_path, files=5)

    def prune(_done, _total):
        for path in paths[:3]:
            path.unlink(missing_ok=True)

    report = verify_directory(tmp_path, NAMES, prune)
    assert [file.verdict for file in report.files] == [
        FileVerdict.CLEAN, FileVerdict.PRUNED, FileVerdict.PRUNED, FileVerdict.CLEAN, FileVerdict.CLEAN,
    ]  # fmt: skip
    assert report.problems == []
    assert report.verdict is Verdict.CLEAN


def test_a_file_that_vanishes_before_older_ones_was_not_pruned(tmp_path):
    paths = make_log(tmp_path, files=5)

    def lose(_done, _total):
        paths[2].unlink(missing_ok=True)

    report = verify_directory(tmp_path, NAMES, lose)
    assert report.files[2].verdict is FileVerdict.MISSING
    assert "offsets [20, 30) cannot be served" in str(report.problems[0])


def test_a_log_that_is_rescued_while_we_read_is_judged_by_its_new_files(tmp_path):
    crashed_log(tmp_path, torn=b"torn")
    rescued = []

    def rescue(_done, _total):
        if not rescued:
            rescued.append(True)
            reopen(tmp_path)

    report = verify_directory(tmp_path, NAMES, rescue)
    assert report.problems == []
    (file,) = report.files
    assert (file.verdict, file.stop) == (FileVerdict.CLEAN, 3)
    assert file.superseded_bytes > 0


def test_what_looks_damaged_is_read_twice_before_that_is_said(tmp_path):
    (path,) = make_log(tmp_path, files=1)
    good = path.read_bytes()
    flip(path, 100)

    def put_right(_done, _total):
        path.write_bytes(good)

    report = verify_directory(tmp_path, NAMES, put_right)
    assert report.files[0].verdict is FileVerdict.CLEAN
