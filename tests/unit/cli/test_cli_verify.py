"""`ister wal verify`: a verdict for each file, on a log at rest, in use, damaged, or being pruned while it is read."""

import asyncio
import os
import random

import pytest
import structlog
from typer.testing import CliRunner

from ister.cli.app import app
from ister.core.errors import CorruptError
from ister.core.frames.frame import encode_message
from ister.core.frames.recover import Verdict
from ister.offline.verify_log import verify_directory
from ister.wal import Wal, WalConfig
from parts.log_dir import MESSAGE, NAMES, as_json, crashed_log, flip, make_log, reopen, verify

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _logging_as_it_was():
    yield
    structlog.reset_defaults()


def nobody_watches(_done, _total):
    pass


def opens(directory):
    try:
        reopen(directory)
    except CorruptError:
        return False
    return True


def test_a_closed_log_is_clean_file_by_file(tmp_path):
    paths = make_log(tmp_path)
    result, report = as_json(tmp_path)
    assert (result.exit_code, result.stderr) == (0, "")
    assert report["verdict"] == "clean"
    assert (report["start"], report["stop"], report["messages"], report["synced_offset"]) == (0, 40, 40, 40)
    assert [file["file"] for file in report["files"]] == [path.name for path in paths]
    assert [(file["first"], file["stop"]) for file in report["files"]] == [(0, 10), (10, 20), (20, 30), (30, 40)]
    assert [file["bytes"] for file in report["files"]] == [path.stat().st_size for path in paths]
    assert all(file["valid_bytes"] == file["bytes"] for file in report["files"])
    assert all(file["superseded_bytes"] == file["bad_bytes"] == 0 for file in report["files"])


def test_people_get_a_table_and_a_verdict_in_words(tmp_path):
    paths = make_log(tmp_path)
    result = verify(tmp_path)
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout
    for path in paths:
        (line,) = [line for line in result.stdout.splitlines() if line.startswith(path.name)]
        assert "clean" in line
    assert "[30, 40)" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("Sound: 4 files, 40 messages, ")


def test_a_missing_middle_file_is_named_with_its_offsets(tmp_path):
    make_log(tmp_path)[1].unlink()
    result, report = as_json(tmp_path)
    assert result.exit_code == 1
    assert report["verdict"] == "corrupt"
    assert [file["verdict"] for file in report["files"]] == ["clean", "missing", "clean", "clean"]
    assert "offsets [10, 20) cannot be served" in result.stderr
    assert "wal-0000000002-*.log is missing" in result.stderr
    assert not opens(tmp_path)


def test_two_missing_files_and_a_damaged_one_are_all_named(tmp_path):
    paths = make_log(tmp_path, files=7)
    paths[1].unlink()
    paths[4].unlink()
    flip(paths[6], 100)
    result = verify(tmp_path)
    assert result.exit_code == 1
    assert result.stderr.count("ister: ") == 3
    assert "offsets [10, 20)" in result.stderr
    assert "offsets [40, 50)" in result.stderr
    assert f"{paths[6]} is corrupt at byte" in result.stderr
    assert "Damaged: 3 problems" in result.stdout


def test_pruned_files_at_the_beginning_are_no_damage(tmp_path):
    paths = make_log(tmp_path)
    paths[0].unlink()
    paths[1].unlink()
    result, report = as_json(tmp_path)
    assert result.exit_code == 0
    assert (report["start"], report["stop"]) == (20, 40)


@pytest.mark.parametrize("which", [0, 1, 3])
def test_every_flipped_byte_in_a_closed_log_is_found_and_named(tmp_path, which):
    path = make_log(tmp_path, messages=3)[which]
    original = path.read_bytes()
    frame = len(encode_message(MESSAGE, 0, 0))
    last = len(original) - 56 if which == 3 else len(original)  # the very last marker attests itself to nobody
    for byte in range(56, last, 7):
        flip(path, byte)
        result, report = as_json(tmp_path)
        number = (byte - 56) // frame
        assert result.exit_code == 1, f"byte {byte}"
        found = report["files"][which]
        assert (found["verdict"], found["valid_bytes"], found["stop"]) == (
            "corrupt", 56 + number * frame, 3 * which + number,
        )  # fmt: skip
        assert f"{path} is corrupt at byte {56 + number * frame}, " in result.stderr
        assert f"where offset {3 * which + number} should be" in result.stderr
        path.write_bytes(original)


def test_a_sealed_file_cut_short_is_corrupt_and_the_last_one_is_torn(tmp_path):
    paths = make_log(tmp_path)
    whole = paths[1].read_bytes()
    paths[1].write_bytes(whole[:-1])
    result, report = as_json(tmp_path)
    assert result.exit_code == 1
    assert report["files"][1]["verdict"] == "corrupt"
    paths[1].write_bytes(whole)
    paths[3].write_bytes(paths[3].read_bytes()[:-57])
    result, report = as_json(tmp_path)
    assert result.exit_code == 0
    assert (report["verdict"], report["files"][3]["verdict"]) == ("torn", "torn")


@pytest.mark.parametrize("torn", [b"\0" * 10, encode_message(MESSAGE, 5, 5)[:-1], b"garbage" * 10])
def test_a_torn_tail_is_normal_and_what_the_next_open_does_comes_true(tmp_path, torn):
    path, whole = crashed_log(tmp_path, torn=torn)
    result = verify(tmp_path)
    assert result.exit_code == 0
    assert f"torn tail: {len(torn)} bytes from byte {whole} on, where offset 5 should be" in result.stdout
    assert "keeps all messages below offset 5" in result.stdout
    assert "2 messages from offset 3 on are whole, but not known to be synced" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("Sound, with a torn tail: 1 file, 5 messages")
    _, before = as_json(tmp_path)
    assert (before["files"][0]["bad_bytes"], before["synced_offset"]) == (len(torn), 3)
    reopen(tmp_path)
    result, after = as_json(tmp_path)
    assert result.exit_code == 0
    assert (after["verdict"], after["start"], after["stop"], after["messages"]) == ("clean", 0, 5, 5)
    first, second = after["files"]
    assert (first["file"], first["stop"], second["first"], second["stop"]) == (path.name, 3, 3, 5)
    assert first["superseded_bytes"] == path.stat().st_size - first["valid_bytes"]
    assert first["superseded_bytes"] == 2 * len(encode_message(MESSAGE, 0, 0)) + len(torn)
    assert f"{first['superseded_bytes']} bytes behind byte {first['valid_bytes']} were superseded" in (
        verify(tmp_path).stdout
    )


def test_whole_messages_that_no_marker_attests_are_clean_and_said_to_be_unsynced(tmp_path):
    crashed_log(tmp_path, torn=b"")
    result = verify(tmp_path)
    assert result.exit_code == 0
    assert "Sound: 1 file, 5 messages" in result.stdout
    assert "2 messages from offset 3 on are whole, but not known to be synced" in result.stdout
    assert "torn" not in result.stdout


def test_a_marker_behind_the_last_message_of_a_sealed_file_is_not_superseded(tmp_path):
    async def make():
        wal = await Wal.with_config(WalConfig(dir=tmp_path))
        await wal.append_batch([MESSAGE] * 3)
        await wal.sync()
        await wal.rotate()
        await wal.close()

    asyncio.run(make())
    _, report = as_json(tmp_path)
    assert [file["superseded_bytes"] for file in report["files"]] == [0, 0]


def test_two_files_of_one_sequence_are_not_taken_for_a_log(tmp_path):
    paths = make_log(tmp_path)
    paths[1].with_name(NAMES.name(2, 15)).write_bytes(b"")
    result = verify(tmp_path)
    assert result.exit_code == 1
    assert f"{paths[1].name} has the same sequence" in result.stderr
    assert not opens(tmp_path)


def test_a_name_that_goes_back_is_named(tmp_path):
    paths = make_log(tmp_path)
    paths[3].rename(paths[3].with_name(NAMES.name(4, 5)))
    result, report = as_json(tmp_path)
    assert result.exit_code == 1
    assert [file["verdict"] for file in report["files"]] == ["clean", "clean", "clean", "corrupt"]
    assert "its name says it starts at offset 5" in result.stderr
    assert not opens(tmp_path)


def test_a_file_that_cannot_be_read_is_named_and_never_waited_for(tmp_path):
    paths = make_log(tmp_path)
    paths[1].unlink()
    paths[1].mkdir()
    paths[2].unlink()
    os.mkfifo(paths[2])
    result, report = as_json(tmp_path)
    assert result.exit_code == 1
    assert [file["verdict"] for file in report["files"]] == ["clean", "missing", "missing", "clean"]
    assert f"{paths[1]} cannot be read (Is a directory)" in result.stderr
    assert f"{paths[2]} is not a regular file" in result.stderr


def test_a_file_that_this_user_may_not_read_is_bad_input_not_damage(tmp_path, monkeypatch):
    make_log(tmp_path)

    def refuse(_files, path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("ister.ports.files.files.OsFiles.open_read", refuse)
    result = verify(tmp_path)
    assert result.exit_code == 2
    assert "may not be used by this user" in result.stderr


def test_bad_input_is_refused_with_a_sentence(tmp_path):
    (tmp_path / "file").write_text("hello")
    (tmp_path / "empty").mkdir()
    make_log(tmp_path / "other", files=1, file_name="events.log")
    for directory, sentence in (
        (tmp_path / "nothing", "does not exist"),
        (tmp_path / "file", "is not a directory"),
        (tmp_path / "empty", "has no log files (wal-<sequence>-<first offset>.log)"),
        (tmp_path / "other", "has log files of another name; add --file-name events.log"),
    ):
        result = verify(directory)
        assert (result.exit_code, result.stdout) == (2, "")
        assert sentence in result.stderr
        assert result.stderr.count("\n") == 1
    assert verify(tmp_path / "other", "--file-name", "events.log").exit_code == 0
    assert verify(tmp_path / "other", "--file-name", "../events").exit_code == 2


def test_progress_counts_every_byte_once(tmp_path):
    paths = make_log(tmp_path, files=3, messages=20_000)
    seen = []
    verify_directory(tmp_path, NAMES, lambda done, total: seen.append((done, total)))
    size = sum(path.stat().st_size for path in paths)
    assert seen[-1] == (size, size)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert len(seen) > 6


def test_verify_and_open_agree_wherever_the_last_file_is_cut(tmp_path):
    (path,) = make_log(tmp_path / "log", files=1, messages=3)
    original = path.read_bytes()
    for size in range(0, len(original), 17):
        copy = tmp_path / f"cut-{size}"
        copy.mkdir()
        (copy / path.name).write_bytes(original[:size])
        report = verify_directory(copy, NAMES, nobody_watches)
        assert opens(copy) == (not report.problems), f"cut to {size} bytes"
        after = verify_directory(copy, NAMES, nobody_watches)
        assert after.verdict is Verdict.CLEAN
        assert after.present[-1].stop == report.files[-1].stop


@pytest.mark.parametrize("seed", range(60))
def test_verify_dump_and_open_agree_about_any_damage_and_never_stumble(tmp_path, seed):
    rng = random.Random(seed)
    paths = make_log(tmp_path / "log", files=3, messages=4)
    path = rng.choice(paths)
    data = bytearray(path.read_bytes())
    at = rng.randrange(len(data))
    match seed % 5:
        case 0:
            data[at] ^= 1 << rng.randrange(8)
        case 1:
            del data[at:]
        case 2:
            data[at : at + 16] = bytes(16)
        case 3:
            data[at:at] = rng.randbytes(rng.randrange(1, 40))
        case 4:
            data[at : at + rng.randrange(1, 200)] = b""
    path.write_bytes(data)
    verified = verify(tmp_path / "log")
    dumped = CliRunner().invoke(app, ["wal", "dump", str(path), "-o", "json"])
    assert verified.exit_code in {0, 1}
    assert dumped.exit_code == verified.exit_code, f"{verified.output}\n{dumped.output[-500:]}"
    assert isinstance(dumped.exception, SystemExit | None)
    if path == paths[-1]:
        assert opens(tmp_path / "log") == (verified.exit_code == 0)
