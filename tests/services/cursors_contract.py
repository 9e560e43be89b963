"""What every holder of the subscriptions' progress does, whatever it writes to."""

import asyncio

import pytest

NAMES = ("s", "", "a/b", "ünïcode \ud800", "%2F", "x" * 5000, "x" * 5001)


class CursorsContract:
    """Subclasses have a fixture `new`, which returns a coroutine function of a limit, and a function `run`."""

    @pytest.fixture
    def opened(self, new):
        async def opened(limit=10**9):
            cursors = await new(limit)
            await cursors.load()
            return cursors

        return opened

    def test_a_cursor_goes_on_and_never_back(self, opened, run):
        async def story():
            cursors = await opened()
            assert not cursors.has_reached("s", 0)
            assert await cursors.advance("s", 4) == 4
            assert await cursors.advance("s", 2) == 4
            assert await cursors.advance("s", 7) == 7
            assert (cursors.has_reached("s", 7), cursors.has_reached("s", 8)) == (True, False)
            assert cursors.durable() == {"s": 7}

        run(story())

    def test_a_cursor_is_put_anywhere(self, opened, run):
        async def story():
            cursors = await opened()
            for at in (5, 9, 0, 3):
                assert await cursors.put("s", at) == at
                assert cursors.durable() == {"s": at}
            assert await cursors.advance("s", 4) == 4

        run(story())

    def test_only_what_is_known_is_moved_on_together(self, opened, run):
        async def story():
            cursors = await opened()
            await cursors.advance("a", 5)
            await cursors.advance("b", 5)
            assert await cursors.advance_known({"a": 3, "b": 8, "never": 9}) == {"a": 5, "b": 8}
            await cursors.forget("a")
            assert await cursors.advance_known({"a": 9}) == {}
            assert await cursors.advance_known({}) == {}
            assert cursors.durable() == {"b": 8}

        run(story())

    def test_what_is_forgotten_may_come_back_and_begins_anew(self, opened, run):
        async def story():
            cursors = await opened()
            await cursors.forget("never known")
            await cursors.advance("s", 5)
            await cursors.forget("s")
            assert cursors.durable() == {}
            assert not cursors.has_reached("s", 0)
            assert await cursors.advance("s", 1) == 1
            assert cursors.durable() == {"s": 1}

        run(story())

    def test_what_is_told_of_cursors_is_the_callers_own(self, opened, run):
        async def story():
            cursors = await opened()
            await cursors.advance("s", 5)
            cursors.durable().clear()
            assert cursors.durable() == {"s": 5}

        run(story())

    def test_a_subscription_may_have_any_name(self, opened, run):
        async def story():
            cursors = await opened()
            for cursor, name in enumerate(NAMES):
                assert await cursors.advance(name, cursor) == cursor
            assert cursors.durable() == {name: cursor for cursor, name in enumerate(NAMES)}

        run(story())

    def test_many_at_once_end_at_the_farthest(self, opened, run):
        async def story():
            cursors = await opened()
            ends = await asyncio.gather(*(cursors.advance(f"s{n % 5}", n) for n in range(50)))
            assert all(end >= n for n, end in enumerate(ends))
            await cursors.settle()
            assert cursors.durable() == {f"s{n}": 45 + n for n in range(5)}

        run(story())


class SavedCursorsContract(CursorsContract):
    """`new` opens the same place again each time."""

    def test_cursors_are_there_after_a_restart(self, opened, run):
        async def story():
            cursors = await opened()
            expected = {name: cursor for cursor, name in enumerate(NAMES)}
            for name, cursor in expected.items():
                await cursors.advance(name, cursor)
            await cursors.put("back", 9)
            await cursors.put("back", 2)
            await cursors.advance("gone", 3)
            await cursors.forget("gone")
            await cursors.settle()
            cursors = await opened()
            assert cursors.durable() == {**expected, "back": 2}
            assert await cursors.advance("s", 5) == 5
            assert (await opened()).durable() == {**expected, "back": 2, "s": 5}

        run(story())

    def test_d5_a_cursor_beyond_the_end_is_cut_back_for_good(self, opened, run):
        async def story():
            cursors = await opened()
            await cursors.advance("ahead", 10)
            await cursors.advance("behind", 2)
            assert (await opened(5)).durable() == {"ahead": 5, "behind": 2}
            assert (await opened()).durable() == {"ahead": 5, "behind": 2}, "the topic has grown past it meanwhile"

        run(story())

    def test_j6_what_is_finished_beyond_a_cursor_is_there_after_a_restart(self, opened, run):
        async def story():
            cursors = await opened()
            for name in ("s", "t"):
                await cursors.advance(name, 2)
            await cursors.advance_known({"s": 3, "unknown": 1}, {"s": ((5, 6), (8, 10)), "unknown": ((2, 3),)})
            cursors = await opened()
            assert cursors.durable() == {"s": 3, "t": 2}
            assert (cursors.finished("s"), cursors.finished("t"), cursors.finished("unknown")) == (
                ((5, 6), (8, 10)),
                (),
                (),
            )
            await cursors.advance_known({"s": 9})
            assert cursors.finished("s") == ((9, 10),)
            assert (await opened()).finished("s") == ((9, 10),), "what is below the cursor is not kept"
            await cursors.advance_known({}, {"s": ()})
            assert (await opened()).finished("s") == ()

        run(story())

    def test_j6_what_was_finished_counts_no_more_when_a_cursor_is_moved_or_forgotten(self, opened, run):
        async def story():
            cursors = await opened()
            for name in ("back", "same", "forgotten", "stays"):
                await cursors.advance(name, 5)
            await cursors.advance_known({}, dict.fromkeys(("back", "same", "forgotten", "stays"), ((7, 8),)))
            await cursors.put("back", 1)
            await cursors.put("same", 5)
            await cursors.forget("forgotten")
            await cursors.advance("forgotten", 3)
            for each in (cursors, await opened()):
                found = {name: each.finished(name) for name in each.durable()}
                assert found == {"back": (), "same": (), "forgotten": (), "stays": ((7, 8),)}

        run(story())

    def test_j6_d5_what_is_finished_beyond_the_end_is_cut_back_for_good(self, opened, run):
        async def story():
            cursors = await opened()
            await cursors.advance("s", 1)
            await cursors.advance("t", 1)
            await cursors.advance_known({}, {"s": ((2, 4), (6, 8), (9, 10)), "t": ((2, 3),)})
            assert (await opened(7)).finished("s") == ((2, 4), (6, 7))
            cursors = await opened()
            assert cursors.finished("s") == ((2, 4), (6, 7)), "the topic has grown past it meanwhile"
            assert cursors.finished("t") == ((2, 3),)

        run(story())

    def test_f37_a_caller_that_gives_up_at_any_moment_loses_nothing(self, opened, run):
        async def story(moments):
            cursors = await opened()
            await cursors.replace({"kept": 1})
            acking = asyncio.ensure_future(cursors.advance("s", 7))
            for _ in range(moments):
                await asyncio.sleep(0)
            ended = acking.done()
            acking.cancel()
            await asyncio.wait([acking])
            assert await cursors.advance("t", 8) == 8
            await cursors.settle()
            found = (await opened()).durable()
            assert found in ({"kept": 1, "t": 8}, {"kept": 1, "t": 8, "s": 7})
            assert cursors.durable() == found
            return ended

        moments = 0
        while not run(story(moments)) and moments < 200:
            moments += 1
        assert moments >= 2

    def test_i5_what_is_not_saved_yet_holds_back(self, opened, run):
        async def story():
            cursors = await opened()
            await cursors.advance("old", 7)
            tasks = [asyncio.ensure_future(cursors.advance("first", 5))]
            await asyncio.sleep(0)
            tasks.append(asyncio.ensure_future(cursors.advance("new", 2)))
            tasks.append(asyncio.ensure_future(cursors.forget("old")))
            tasks.append(asyncio.ensure_future(cursors.put("first", 9)))
            await asyncio.sleep(0)
            assert cursors.durable() == {"old": 7, "first": 5, "new": 2}
            await asyncio.gather(*tasks)
            assert cursors.durable() == {"first": 9, "new": 2} == (await opened()).durable()

        run(story())

    def test_what_was_there_is_replaced_whole(self, opened, run):
        async def story():
            cursors = await opened()
            await cursors.advance("a", 3)
            await cursors.advance("b", 4)
            again = await opened()
            await again.replace({"b": 2, "c": 9})
            assert again.durable() == {"b": 2, "c": 9} == (await opened()).durable()

        run(story())
