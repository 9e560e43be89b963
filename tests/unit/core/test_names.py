import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ister.core.errors import InvalidNameError
from ister.core.names import NAME_BYTES_MAX, TopicName
from parts.counts import LONG

NAME_LIKE = st.text("/ab-_.\n\0ä%", max_size=8)
PART = st.text("abcXYZ019_-", min_size=1, max_size=20)


@given(PART, PART)
def test_a_well_formed_name_is_parsed_into_its_parts(namespace, topic):
    name = TopicName.parse(f"/{namespace}/{topic}")
    assert name.path_parts() == (namespace, topic)
    assert TopicName.parse(str(name)) == name


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "//",
        "a/b",
        "/a",
        "/a/",
        "/a//b",
        "/a/b/",
        "/a/b/c",
        "/../x",
        "/a/..",
        "/a/b\n",
        "/a/ b",
        "/ä/b",
        "/a/b\0",
        "/a/b.c",
        "\\a\\b",
        "/a/b%2f",
    ],
)
def test_anything_else_is_refused_by_reason(text):
    with pytest.raises(InvalidNameError, match="expected /namespace/topic"):
        TopicName.parse(text)


def test_the_length_is_bounded_to_the_character():
    assert TopicName.parse("/n/" + "t" * (NAME_BYTES_MAX - 3))
    with pytest.raises(InvalidNameError, match="more than 255"):
        TopicName.parse("/n/" + "t" * (NAME_BYTES_MAX - 2))


def test_a_name_cannot_be_made_around_the_parser():
    with pytest.raises(InvalidNameError):
        TopicName("..", "x")


@settings(max_examples=100_000 if LONG else 1_000, deadline=None)
@given(NAME_LIKE, NAME_LIKE)
def test_f40_s7_two_names_never_share_a_path(one, other):
    parsed = []
    for text in (one, other):
        try:
            parsed.append(TopicName.parse(text))
        except InvalidNameError:
            return
    assert (parsed[0].path_parts() == parsed[1].path_parts()) == (one == other)
