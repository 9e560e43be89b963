"""Cursors move between the log's directory and metadata: crashes anywhere, and one place in charge."""

import asyncio
import json
import random
from pathlib import Path

import pytest

from ister.core.errors import CorruptMetadataError, CursorTakenError, MetadataUnavailableError, MetadataUnknownError
from ister.ports.files.files import OsFiles
from ister.ports.metadata import MemoryMetadata, SqliteMetadata
from ister.storage.cursors.metadata import OLD_ROOT, MetadataCursors, progress_root, record_key, topic_key
from ister.storage.cursors.move import EarlierProgress, Marker, drop_cursors, open_cursors
from ister.storage.cursors.saved import CURSORS_NAME, CursorFile, dump_cursors, load_progress
from parts.progress import NEVER, ROOT, TOPIC, Script, nowhere
from sim.cloud_machine import Network, SimMetadata
from sim.machine import SimFiles, run

DIRECTORY = Path("/sim/default/orders/1")
FILE = DIRECTORY / CURSORS_NAME
MARKER = topic_key(ROOT, TOPIC)
SAVED = {"a": 3, "b": 7, "c/d": 0}


class KilledError(Exception):
    """The process ends here."""


class Machine:
    """A disk and a metadata store, and whatever opens a topic on them."""

    def __init__(self, files=None, metadata=None):
        self.files = files or SimFiles()
        self.files.make_directory(DIRECTORY)
        self.metadata = metadata or SimMetadata(Script())

    def on_step(self, act):
        self.files.on_step = act
        self.metadata.network.on_step = act

    def after_crash(self, rng, *, power):
        files = self.files.unpowered(rng) if power else self.files.killed()
        return Machine(files, self.metadata.copy(Script()))

    async def open(self, *, in_metadata, limit=NEVER, generation=1, had_before=False):
        cursors = await open_cursors(
            self.files, DIRECTORY, "orders", limit,
            metadata=self.metadata, root=ROOT, topic=TOPIC, generation=generation, in_metadata=in_metadata, place=nowhere,
            earlier=EarlierProgress(self.metadata) if had_before else None,
        )  # fmt: skip
        assert isinstance(cursors, MetadataCursors if in_metadata else CursorFile)
        await cursors.load()
        return cursors

    def in_file(self):
        if FILE not in self.files.names_now:
            return None
        return load_progress(bytes(self.files.names_now[FILE].data), str(FILE))[0]

    def holder(self):
        held = self.metadata._held.get(MARKER.encode())
        return None if held is None else json.loads(held.value)["holder"]

    def check_charge(self, *, in_metadata, expected):
        """Exactly one place has cursors, and it is the one that was asked for."""
        keys = [key.decode() for key in self.metadata._keys]
        if in_metadata:
            assert self.holder() == "metadata"
            assert self.in_file() is None
            records = {key for key in keys if "/subscriptions/" in key}
            assert records == {record_key(ROOT, name, TOPIC) for name in expected}
        else:
            assert keys == []
            assert (self.in_file() or {}) == expected


async def with_cursors(*, in_metadata, saved=None):
    machine = Machine()
    cursors = await machine.open(in_metadata=in_metadata)
    for name, cursor in (SAVED if saved is None else saved).items():
        await cursors.advance(name, cursor)
    return machine


def test_a_topic_that_never_moved_costs_one_question():
    async def story():
        machine = await with_cursors(in_metadata=False)
        machine.metadata.network.calls.clear()
        await machine.open(in_metadata=False)
        assert machine.metadata.network.calls == [("get", MARKER)]

    run(story())


def test_once_in_metadata_opening_writes_nothing():
    async def story():
        machine = await with_cursors(in_metadata=True)
        machine.metadata.network.calls.clear()
        assert (await machine.open(in_metadata=True)).durable() == SAVED
        assert {op for op, _ in machine.metadata.network.calls} == {"get", "list"}

    run(story())


@pytest.mark.parametrize("saved", [{}, SAVED])
def test_cursors_move_there_and_back_as_often_as_one_likes(saved):
    async def story():
        machine, expected = await with_cursors(in_metadata=False, saved=saved), dict(saved)
        for n, in_metadata in enumerate((True, True, False, False, True, False)):
            cursors = await machine.open(in_metadata=in_metadata)
            assert cursors.durable() == expected
            machine.check_charge(in_metadata=in_metadata, expected=expected)
            expected["a"] = 10 + n
            await cursors.advance("a", 10 + n)

    run(story())


def test_j6_what_is_finished_beyond_the_cursors_moves_with_them():
    async def story():
        machine = await with_cursors(in_metadata=False)
        await (await machine.open(in_metadata=False)).advance_known({}, {"a": ((4, 6), (8, 9))})
        for in_metadata in (True, False, True):
            cursors = await machine.open(in_metadata=in_metadata)
            assert (cursors.finished("a"), cursors.finished("b")) == (((4, 6), (8, 9)), ())

    run(story())


def test_cursors_move_on_a_real_disk_and_in_sqlite(tmp_path):
    async def story():
        metadata = await SqliteMetadata.open(tmp_path / "metadata.db")

        async def opened(*, in_metadata):
            cursors = await open_cursors(
                OsFiles(), tmp_path, "orders", NEVER,
                metadata=metadata, root=ROOT, topic=TOPIC, generation=1, in_metadata=in_metadata, place=nowhere,
            )  # fmt: skip
            await cursors.load()
            return cursors

        await (await opened(in_metadata=False)).replace(SAVED)
        for in_metadata in (True, False, True):
            assert (await opened(in_metadata=in_metadata)).durable() == SAVED
            assert (tmp_path / CURSORS_NAME).exists() is not in_metadata
        await drop_cursors(metadata, ROOT, TOPIC, 1)
        assert await metadata.list("/") == []
        await metadata.close()

    asyncio.run(story())


@pytest.mark.parametrize("to_metadata", [True, False])
def test_d5_what_is_beyond_the_end_is_cut_back_on_its_way(to_metadata):
    async def story():
        machine = await with_cursors(in_metadata=not to_metadata)
        assert (await machine.open(in_metadata=to_metadata, limit=5)).durable() == {**SAVED, "b": 5}
        assert (await machine.open(in_metadata=to_metadata)).durable() == {**SAVED, "b": 5}

    run(story())


def test_what_an_earlier_generation_left_is_nobodys():
    async def story():
        for in_metadata in (True, False):
            machine = await with_cursors(in_metadata=True)
            assert (await machine.open(in_metadata=in_metadata, generation=2)).durable() == {}
            machine = await with_cursors(in_metadata=True)
            await CursorFile(machine.files, DIRECTORY, "orders", NEVER).replace({"a": 1})
            assert (await machine.open(in_metadata=in_metadata, generation=2)).durable() == {"a": 1}

    run(story())


def test_d5_the_marker_of_a_later_generation_stops_the_earlier_one():
    async def story():
        machine = Machine()
        await machine.open(in_metadata=True, generation=2)
        for in_metadata in (True, False):
            with pytest.raises(CursorTakenError, match=MARKER):
                await machine.open(in_metadata=in_metadata)

    run(story())


@pytest.mark.parametrize(
    "value", [b"", b'{"version":1}', b'{"version":1,"generation":1,"holder":"me"}', b'{"version":9}']
)
def test_i11_a_damaged_marker_is_an_error_that_names_it_and_never_a_guess(value):
    async def story():
        machine = await with_cursors(in_metadata=False)
        await machine.metadata.put(MARKER, value)
        for in_metadata in (True, False):
            with pytest.raises(CorruptMetadataError, match=MARKER):
                await machine.open(in_metadata=in_metadata)
        assert machine.in_file() == SAVED

    run(story())


def test_two_that_move_at_once_do_not_both_succeed():
    async def story(seed):
        machine = await with_cursors(in_metadata=False)
        machine.metadata.network = Network(random.Random(seed))
        ends = await asyncio.gather(*(machine.open(in_metadata=True) for _ in range(2)), return_exceptions=True)
        failed = [end for end in ends if not isinstance(end, MetadataCursors)]
        assert all(isinstance(end, CursorTakenError) for end in failed), failed
        machine.metadata.network = Script()
        assert (await machine.open(in_metadata=True)).durable() == SAVED
        machine.check_charge(in_metadata=True, expected=SAVED)
        return len(failed)

    assert any(run(story(seed), seed) for seed in range(20))


def test_a_turn_of_the_marker_that_lands_late_puts_nobody_in_charge():
    async def story(*, saved):
        machine = await with_cursors(in_metadata=False, saved=saved)
        metadata, late = machine.metadata, []
        plain = metadata.cas

        async def lose(key, value, *, version):
            if b'"metadata"' in value:
                late.append((key, value, version))
                raise MetadataUnknownError("sim", "cas", "no answer")
            return await plain(key, value, version=version)

        metadata.cas = lose
        with pytest.raises(MetadataUnknownError):
            await machine.open(in_metadata=True)
        metadata.cas = plain
        assert (await machine.open(in_metadata=False)).durable() == saved
        [(key, value, version)] = late
        assert await metadata.cas(key, value, version=version) is None
        assert (await machine.open(in_metadata=False)).durable() == saved

    for saved in ({}, SAVED):
        run(story(saved=saved))


# --- crashes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to_metadata", [True, False])
def test_f1_a_crash_before_any_step_of_a_move_leaves_one_place_in_charge(to_metadata):
    async def story():
        machine = await with_cursors(in_metadata=not to_metadata)
        # What an earlier try has left in the target is wrong, and must not be seen.
        if to_metadata:
            rng, crashed = random.Random(0), []
            machine.on_step(lambda op, place: crashed.append(machine.after_crash(rng, power=False)))
            await machine.open(in_metadata=True)
            machine = next(one for one in crashed[::-1] if one.holder() == "file")
            await (await file_of(machine)).put("b", 5)
        else:
            machine.files.names_now.clear()
            await CursorFile(machine.files, DIRECTORY, "orders", NEVER).replace({"wrong": 1, "b": 99})
        expected = {**SAVED, "b": 5} if to_metadata else SAVED
        rng, crashes = random.Random(1), []

        def crash(op, place):
            crashes.extend((op, place, machine.after_crash(rng, power=power)) for power in (False, True, True))

        machine.on_step(crash)
        await machine.open(in_metadata=to_metadata)
        crash("end", "")
        turned = set()
        for op, place, image in crashes:
            turned.add(image.holder())
            for then in (True, False):
                again = image.after_crash(rng, power=False)
                assert (await again.open(in_metadata=then)).durable() == expected, (op, place, then)
                again.check_charge(in_metadata=then, expected=expected)
        assert turned >= {"file", "metadata"}
        return len(crashes)

    assert run(story()) >= 36


async def file_of(machine):
    """Return the file's cursors as they are, whoever is in charge."""
    cursors = CursorFile(machine.files, DIRECTORY, "orders", NEVER)
    await cursors.load()
    return cursors


@pytest.mark.parametrize("fault", ["unavailable", "unknown", "landed"])
@pytest.mark.parametrize("to_metadata", [True, False])
def test_a_move_whose_call_goes_wrong_is_told_and_the_next_opening_ends_it(to_metadata, fault):
    async def story(at, then):
        machine = await with_cursors(in_metadata=not to_metadata)
        script = machine.metadata.network = Script(at, fault)
        try:
            await machine.open(in_metadata=to_metadata)
        except (MetadataUnavailableError, MetadataUnknownError):
            script.fault = ""
            assert (await machine.open(in_metadata=then)).durable() == SAVED
            machine.check_charge(in_metadata=then, expected=SAVED)
            return True
        return at < len(script.calls)

    for then in (True, False):
        at = 0
        while run(story(at, then)):
            at += 1
        assert at >= 8


def test_f1_i9_lives_of_moves_and_crashes_lose_no_cursor_and_invent_none(count, tell):
    lives = count(150, 5000)
    openings = crashes = 0
    for seed in range(lives):
        opened, crashed = run(_life(seed), seed)
        openings, crashes = openings + opened, crashes + crashed
    tell("F1", f"cursors move: {openings} openings and {crashes} crashes in {lives} lives")
    assert crashes >= 2 * lives
    assert openings >= 2 * lives


async def _life(seed):
    rng = random.Random(seed)
    machine, openings, crashes = Machine(), 0, 0
    answered, invoked = {}, {}
    for _ in range(8):
        in_metadata = rng.random() < 0.5
        left = rng.choice((rng.randint(0, 25), NEVER))

        def step(op, place):
            nonlocal left
            left -= 1
            if left < 0:
                raise KilledError

        machine.on_step(step)
        try:
            cursors = await machine.open(in_metadata=in_metadata)
            openings += 1
            found = cursors.durable()
            assert answered.keys() <= found.keys() <= invoked.keys(), (seed, answered, found)
            assert all(answered.get(name, 0) <= found[name] <= invoked[name] for name in found), (seed, answered, found)
            machine.check_charge(in_metadata=in_metadata, expected=found)
            answered = dict(found)
            invoked = dict(found)
            for _ in range(rng.randint(0, 4)):
                name = rng.choice(("a", "b", "c/d"))
                cursor = answered.get(name, 0) + rng.randint(0, 9)
                invoked[name] = cursor
                answered[name] = await cursors.advance(name, cursor)
        except KilledError:
            crashes += 1
        machine = machine.after_crash(rng, power=rng.random() < 0.5)
    return openings, crashes


def test_a_file_that_a_power_loss_brought_back_is_removed_and_not_believed():
    async def story():
        machine = await with_cursors(in_metadata=True)
        machine.files.create(FILE).append([dump_cursors({"a": 99})])
        assert (await machine.open(in_metadata=True)).durable() == SAVED
        assert machine.in_file() is None
        machine.files.create(FILE).append([b"damaged"])
        assert (await machine.open(in_metadata=False)).durable() == SAVED == machine.in_file()

    run(story())


def test_what_a_deleted_topic_had_in_metadata_is_dropped_with_what_came_before():
    async def story():
        metadata = MemoryMetadata()
        for generation in (1, 2):
            cursors = MetadataCursors(metadata, TOPIC, generation, NEVER, root=ROOT, place=nowhere)
            await cursors.load()
            await cursors.advance(f"s{generation}", 1)
        await metadata.put(MARKER, b'{"version":1,"generation":2,"holder":"metadata"}')
        await drop_cursors(metadata, ROOT, TOPIC, 2)
        assert await metadata.list("/") == []
        await drop_cursors(metadata, ROOT, TOPIC, 2)

    run(story())


# --- the place of earlier releases ------------------------------------------------------------------------------------


async def earlier_cursors(metadata, saved=SAVED, *, generation=1, holder="metadata"):
    """Leave progress as an earlier release did; returns the keys and values."""
    marker = Marker(metadata, OLD_ROOT, TOPIC, generation)
    await marker.read()
    await marker.set(holder)
    await MetadataCursors(metadata, TOPIC, generation, NEVER, root=OLD_ROOT, place=nowhere).replace(saved)
    return await metadata.list(OLD_ROOT)


@pytest.mark.parametrize("in_metadata", [True, False])
def test_progress_of_an_earlier_release_is_copied_once_and_left_as_it_is(in_metadata):
    """I5."""

    async def story():
        machine = Machine()
        left = await earlier_cursors(machine.metadata)
        cursors = await machine.open(in_metadata=in_metadata, limit=5, had_before=True)
        assert cursors.durable() == {"a": 3, "b": 5, "c/d": 0}, "none is beyond the end of the topic"
        await cursors.advance("a", 4)
        for name in ("b", "c/d"):
            await cursors.forget(name)
        again = await machine.open(in_metadata=in_metadata, had_before=True)
        assert again.durable() == {"a": 4}
        await again.forget("a")
        assert (await machine.open(in_metadata=in_metadata, had_before=True)).durable() == {}
        assert await machine.metadata.list(OLD_ROOT) == left
        assert (machine.holder(), machine.in_file()) == (("metadata", None) if in_metadata else (None, {}))

    run(story())


@pytest.mark.parametrize(
    ("saved", "had_before", "file"),
    [
        ({"generation": 1}, False, False),  # a topic that is new here: these are another deployment's
        ({"generation": 2}, True, False),
        ({"generation": 1, "holder": "file"}, True, False),
        ({"generation": 1}, True, True),  # the file was in charge, so these are another deployment's
    ],
)
@pytest.mark.parametrize("in_metadata", [True, False])
def test_progress_of_another_deployment_is_not_taken_for_ours(saved, had_before, file, in_metadata):
    """I5."""

    async def story():
        machine = await with_cursors(in_metadata=False, saved={"x": 1}) if file else Machine()
        left = await earlier_cursors(machine.metadata, **saved)
        cursors = await machine.open(in_metadata=in_metadata, had_before=had_before)
        assert cursors.durable() == ({"x": 1} if file else {})
        await drop_cursors(machine.metadata, ROOT, TOPIC, 1)
        assert await machine.metadata.list(OLD_ROOT) == left

    run(story())


def test_a_crash_anywhere_while_progress_of_an_earlier_release_is_copied_loses_none():
    """I5."""

    async def story():
        for at in range(60):
            machine, steps = Machine(), iter(range(10**6))
            await earlier_cursors(machine.metadata)

            def kill(*_, at=at, steps=steps):
                if next(steps) == at:
                    raise KilledError

            machine.on_step(kill)
            try:
                await machine.open(in_metadata=True, had_before=True)
            except KilledError:
                pass
            else:
                return
            machine = machine.after_crash(random.Random(at), power=at % 2 == 0)
            assert (await machine.open(in_metadata=True, had_before=True)).durable() == SAVED
            assert machine.holder() == "metadata"
        pytest.fail("it takes more steps than were tried")

    run(story())


def test_where_there_is_no_progress_of_an_earlier_release_one_question_serves_all_topics():
    """I5."""

    async def story():
        machine = Machine()
        earlier = EarlierProgress(machine.metadata)
        assert [await earlier.exists() for _ in range(3)] == [False] * 3
        assert len(machine.metadata.network.calls) == 1

    run(story())


def test_progress_lies_below_the_prefix_of_the_deployment():
    """I5."""
    assert progress_root("/prod") == progress_root("/prod/") == "/prod/persistent_storage/iceberg"
    assert progress_root("/danube-data") == ROOT
