"""The name of a topic's table, and the text in which a table says how far it holds the topic."""

import hashlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ister.core.errors import CorruptMetadataError
from ister.core.names import TopicName
from ister.core.table.names import base_of, offsets_of, offsets_text, table_of, with_generation, with_hash, with_number

NAMES = st.from_regex(r"/[A-Za-z0-9_-]{1,12}/[A-Za-z0-9_-]{1,12}", fullmatch=True).map(TopicName.parse)


def test_a_table_has_the_topic_s_name_in_lower_case_without_hyphens():
    assert table_of(TopicName.parse("/My-Team/Orders-EU_1")) == ("my_team", "orders_eu_1")


def test_the_partitions_of_a_topic_share_its_table():
    base = TopicName.parse("/default/orders")
    for name in ("/default/orders-part-0", "/default/orders-part-17"):
        partition = TopicName.parse(name)
        assert base_of(partition) == base
        assert table_of(partition) == table_of(base)
        assert with_hash(partition) == with_hash(base)
    assert base_of(TopicName.parse("/default/orders-part-01")) != base


def test_topics_that_would_share_a_name_are_told_apart_by_their_hash():
    names = [TopicName.parse(name) for name in ("/a/x-y", "/a/x_y", "/a/X-Y", "/A/x-y")]
    assert len({table_of(name) for name in names}) == 1
    assert len({with_hash(name) for name in names}) == len(names)
    assert with_hash(names[0]) == ("a", "x_y_" + hashlib.sha256(b"/a/x-y").hexdigest()[:8])


@given(name=NAMES)
def test_a_table_s_name_needs_no_quotes_in_sql(name):
    for namespace, table in (table_of(name), with_hash(name), with_generation(table_of(name), 7)):
        assert re.fullmatch(r"[a-z0-9_]+", namespace)
        assert re.fullmatch(r"[a-z0-9_]+", table)


@pytest.mark.parametrize("length", [1, 9, 236, 240, 246, 247, 252])
def test_a_long_name_and_what_is_added_to_it_are_255_bytes_at_most(length):
    """K12. A file's name, and PostgreSQL's column."""
    topic, twin = (TopicName.parse(f"/a/{'x' * (length - 1)}{end}") for end in "xX")
    plain, hashed = table_of(topic), with_hash(topic)
    assert plain == ("a", "x" * length)
    names = [hashed, with_generation(plain, 12), with_generation(hashed, 2**64 - 1)]
    assert all(len(name) <= 255 for _, name in names)
    assert len({plain, *names}) == 4
    assert with_hash(twin) != hashed
    assert with_generation(with_hash(twin), 7) != with_generation(hashed, 7), "the hash is not what is cut"
    assert with_generation(plain, 1) != with_generation(plain, 2)
    assert len(with_number(plain[1], 999)) <= 255


def test_names_that_fit_are_what_they_were():
    topic = TopicName.parse(f"/a/{'y' * 246}")
    digest = hashlib.sha256(str(topic).encode()).hexdigest()[:8]
    assert with_hash(topic) == ("a", f"{'y' * 246}_{digest}")
    assert with_generation(("a", "z" * 252), 1) == ("a", "z" * 252 + "_g1")
    assert with_number("x", 2) == "x-2"


def test_a_topic_made_again_has_a_name_of_its_own():
    assert with_generation(("a", "x"), 2) == ("a", "x_g2")


@given(offsets=st.dictionaries(st.integers(0, 5000), st.integers(0, 2**63 - 1)))
def test_offsets_are_read_as_they_were_written(offsets):
    assert offsets_of(offsets_text(offsets), "a.x") == offsets


def test_the_same_offsets_are_the_same_text():
    assert offsets_text({10: 1, 2: 3}) == offsets_text({2: 3, 10: 1}) == '{"2":3,"10":1}'


@pytest.mark.parametrize(
    "text", ["", "[]", "7", "null", "{", '{"a":1}', '{"0":-1}', '{"0":1.5}', '{"0":true}', '{"-1":1}']
)
def test_text_that_is_not_ours_is_refused_by_table(text):
    with pytest.raises(CorruptMetadataError, match=r"a\.x"):
        offsets_of(text, "a.x")
