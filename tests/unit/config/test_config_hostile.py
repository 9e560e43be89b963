"""Hostile files: no crash, no hang, bounded memory (F40); nothing is constructed (S15); no secret is told (S9)."""

import time
import traceback
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from ister.config import Cloud, ConfigError, WalSection, advice, loads, values
from ister.config.problems import PROBLEMS_MAX
from ister.config.reference import starter
from parts.config import DATA
from parts.counts import LONG

pytestmark = pytest.mark.slow

VALID = [path.read_bytes() for path in sorted(DATA.glob("spec_*.yml"))] + [starter().encode()]
ENVIRON = {
    "AWS_ACCESS_KEY_ID": "a",
    "AWS_SECRET_ACCESS_KEY": "b",
    "X": "x" * 10_000,
    "Y": "y" * 1000,
    "N": "7",
    "BAD": "\udcff\x00",
}
WORDS = [
    *(word for text in VALID for word in text.decode().replace(":", " : ").split()),
    "${X}", "$${", "${", "${NONE}", "${BAD}", "&a", "*a", "!!python/object:os.system", "!x", "<<", "- ", "? ", "|", ">-",
    "---", "...", "%YAML 9.9", "%TAG ! x", "{", "}", "[", "]", ",", "\n", "\n  ", "\n    ", "\n      ", "\t", "#", "'", '"',
    "~", ".inf", "0x1F", "1e999", "\x00", "\x85", "\ufeff", "\U0001f40d", '"\\ud800"', '"\\UFFFFFFFF"', "9" * 400, "null",
]  # fmt: skip


def outcome(content, environ=ENVIRON):
    try:
        return loads(content, "f.yml", None, environ)
    except ConfigError as error:
        return error


def survives(content):
    """Read it; either it is sound and can be shown, or there are problems that can be printed."""
    began = time.monotonic()
    found = outcome(content)
    if isinstance(found, ConfigError):
        assert 1 <= len(found.problems) <= PROBLEMS_MAX
        for line in found.lines:
            line.encode()
            assert "\n" not in line
    else:
        for value in values(found):
            str(value.shown).encode()
        advice(found)
    assert time.monotonic() - began < 5


@settings(max_examples=30_000 if LONG else 200, deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_f40_any_bytes_are_read_or_refused(content):
    survives(content)


@settings(max_examples=40_000 if LONG else 250, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=40), st.sampled_from([" ", ""]))
def test_f40_any_words_of_yaml_are_read_or_refused(words, between):
    survives(between.join(words).encode("utf-8", "surrogatepass"))


@st.composite
def mutated(draw):
    lines = draw(st.sampled_from(VALID)).split(b"\n")
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, len(lines) - 1))
        line, word = lines[at], draw(st.sampled_from(WORDS)).encode("utf-8", "surrogatepass")
        cut = draw(st.integers(0, len(line)))
        key = line.partition(b":")[0]
        lines[at : at + 1] = draw(
            st.sampled_from(
                [
                    [],
                    [line, line],
                    [b" " + line],
                    [line[1:]],
                    [line.replace(b"# ", b"", 1)],
                    [line[:cut], line[cut:]],
                    [line[:cut] + word + line[cut:]],
                    [key + b": " + word],
                ]
            )
        )
        if not lines:
            break
    return b"\n".join(lines)


@settings(max_examples=30_000 if LONG else 200, deadline=None)
@given(mutated())
def test_f40_any_change_of_a_valid_file_is_read_or_refused(content):
    survives(content)


MIB = 1 << 20
SIZE = MIB if LONG else MIB // 8
BOMBS = {
    "deep list": b"[" * SIZE,
    "deep mapping": b"{" * SIZE,
    "deep dashes": b"- " * (SIZE // 2),
    "deep keys": b"? " * (SIZE // 2),
    "long list": b"- a\n" * (SIZE // 4),
    "many keys": b"".join(b"k%d: 1\n" % n for n in range(SIZE // 13)),
    "many unknown keys": b"wal_cloud:\n" + b"".join(b"  k%d: 1\n" % n for n in range(9_000 // 2)),
    "many anchors": b"wal_cloud:\n" + b"".join(b"  k%d: &a%d 1\n" % (n, n) for n in range(SIZE // 22)),
    "same key": b"a: 1\n" * (SIZE // 5),
    "long value": b"wal_cloud: {wal: {dir: " + b"a" * (SIZE - 100) + b"}}",
    "long key": b"a" * 1000 + b": 1",
    "too large": b"#" * (MIB + 1),
    "documents": b"---\n" * (SIZE // 4),
    "variables": b"wal_cloud: {wal: {dir: '" + b"${X}" * (SIZE // 5) + b"'}}",
    "laughs": b"a: &a [x,x,x,x,x,x,x,x,x]\n"
    + b"".join(b"%c: &%c [%s]\n" % (n + 1, n + 1, b",".join([b"*%c" % n] * 9)) for n in range(97, 115)),
}


@pytest.mark.parametrize("name", BOMBS)
def test_f40_s15_a_bomb_is_refused_soon(name):
    began = time.monotonic()
    with pytest.raises(ConfigError) as caught:
        loads(BOMBS[name], "f.yml", None, ENVIRON)
    assert len(caught.value.problems) <= PROBLEMS_MAX
    assert len(str(caught.value)) < 1000
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("name", BOMBS if LONG else ["variables", "laughs", "too large"])
def test_f40_s15_a_bomb_takes_little_memory(name):
    tracemalloc.start()
    try:
        assert isinstance(outcome(BOMBS[name]), ConfigError)
        assert tracemalloc.get_traced_memory()[1] < 64 * MIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (BOMBS["long list"], "f.yml:5000: has more than 5,000 values; this is no configuration"),
        (BOMBS["deep list"], "f.yml:1: is nested deeper than 16 levels; this is no configuration"),
        (BOMBS["too large"], "f.yml: is larger than 1 MiB; this is no configuration"),
        (b'wal_cloud:\n  wal:\n    dir: "\\UFFFFFFFF"', "f.yml:3: is not YAML; check the text behind this line"),
        (b"wal_cloud:\n\n  a\x00", "f.yml:3: holds a character that YAML does not allow; take it out"),
        (b"wal_cloud:\n  \xff", "f.yml:2: is not UTF-8 text; save the file as UTF-8"),
        *(
            (
                b"wal_cloud:\n  wal:\n    dir: " + value,
                "f.yml:3: wal_cloud.wal.dir: holds characters that cannot be used in a value; take them out",
            )
            for value in (b'"\\0"', b'"\\e[2J"', b'"\\ud800"', b"${BAD}")
        ),
    ],
)
def test_f40_what_is_out_of_bounds_is_named(content, problem):
    assert outcome(content).lines == [problem]


def test_f40_the_last_value_that_fits_is_taken_and_the_next_is_not():
    def of(length):
        return (
            b"wal_cloud: {cloud: {backend: oss, options: {a: '"
            + b"${Y}" * (length // 1000)
            + b"x" * (length % 1000)
            + b"'}}}"
        )

    options = loads(of(65_536), "f", None, ENVIRON).config.wal_cloud.cloud.revealed_options()
    assert len(options["a"]) == 65_536
    with pytest.raises(ConfigError, match="longer than 65,536 characters"):
        loads(of(65_537), "f", None, ENVIRON)


@pytest.mark.parametrize(
    "value",
    [
        "!!python/object/apply:os.system ['touch {marker}']",
        "!!python/object/new:pathlib.Path ['x']",
        "!!python/name:os.system ''",
        "!!python/module:os ''",
        "!!binary aGk=",
        "!!str text",
        "!custom text",
        "! text",
        "!!set {{a}}",
    ],
)
def test_s15_a_tag_is_refused_and_nothing_is_constructed(tmp_path, value):
    marker = tmp_path / "marker"
    text = f"wal_cloud:\n  wal:\n    dir: {value.format(marker=marker)}\n"
    with pytest.raises(ConfigError) as caught:
        loads(text.encode(), "f.yml")
    assert caught.value.lines == [
        "f.yml:3: wal_cloud.wal.dir: has a tag (!...), which is not taken; write the plain value"
    ]
    assert not marker.exists()


def test_s15_anchors_and_aliases_are_refused_by_line():
    with pytest.raises(ConfigError) as caught:
        loads(b"wal_cloud:\n  wal: &w\n    dir: x\n  uploader: *w\n", "f.yml")
    assert [problem.line for problem in caught.value.problems] == [2, 4]
    assert "has an anchor" in caught.value.lines[0]
    assert "is an alias" in caught.value.lines[1]


# --- S9 ---------------------------------------------------------------------------------------------------------------

CANARY = "CANARY-7f3a"
SOUND = """\
wal_cloud:
  cloud:
    backend: s3
    root: s3://b
    access_key: ${SECRET}
    secret_key: CANARY-7f3a
    session_token: "CANARY-7f3a${SECRET}"
    options: {sas_x: CANARY-7f3a, Password: CANARY-7f3a, upstream: "https://u:CANARY-7f3a@h/", disable_config_load: yes}
  metadata: {etcd_endpoint: a:1, etcd_user: u, etcd_password: CANARY-7f3a}
"""
LEAKY = [
    "access_key: [CANARY-7f3a]",
    "access_key: {CANARY-7f3a: x}",
    "access_key: {a: CANARY-7f3a}",
    "access_key: !CANARY-7f3a x",
    "access_key: !CANARY-7f3a!x x",
    "access_key: *CANARY-7f3a",
    "access_key: &CANARY-7f3a x",
    "access_key: 'CANARY-7f3a",
    'access_key: "CANARY-7f3a\\q"',
    'access_key: "CANARY-7f3a\\0"',
    "access_key: CANARY-7f3a: x",
    "access_key: CANARY-7f3a ${",
    "access_key: CANARY-7f3a ${NOT_SET}",
    "access_key:CANARY-7f3a",
    "access_key CANARY-7f3a",
    "access_key: @CANARY-7f3a",
    "access_key: %CANARY-7f3a",
    "access_key: |CANARY-7f3a",
    "access_key: [CANARY-7f3a",
    "access_key: CANARY-7f3a\n    access_key: CANARY-7f3a",
    "access_key: ${SECRET}",
    "credentials_json: CANARY-7f3a",
    "endpoint: https://u:CANARY-7f3a@h",
    "root: s3://u:CANARY-7f3a@b",
    "anonymous: CANARY-7f3a",
    "backend: CANARY-7f3a",
    "backend: ${SECRET}",
    "credentials_path: ~CANARY-7f3a",
    "options: CANARY-7f3a",
    "options: [CANARY-7f3a]",
    "options: {token: [CANARY-7f3a]}",
    "options: {token: '" + "CANARY-7f3a" * 6000 + "'}",
    "secret_key: '" + "CANARY-7f3a" * 6000 + "'",
]


def everything_told(error):
    return "\n".join([str(error), repr(error), repr(error.problems), *error.lines, *traceback.format_exception(error)])


@pytest.mark.parametrize("line", LEAKY)
def test_s9_no_problem_repeats_a_value(line):
    with pytest.raises(ConfigError) as caught:
        loads(f"wal_cloud:\n  cloud:\n    {line}\n".encode(), "f.yml", None, {"SECRET": CANARY})
    assert "7f3a" not in everything_told(caught.value)
    assert caught.value.__context__ is None, "pydantic's and PyYAML's own errors hold values"


def test_s9_a_sound_configuration_shows_no_secret():
    loaded = loads(SOUND.encode(), "f.yml", None, {"SECRET": CANARY})
    shown = [repr(loaded), str(loaded), str(loaded.config), repr(loaded.config), loaded.config.model_dump_json()]
    shown += [str(loaded.config.model_dump()), repr(loaded.config.wal_cloud.metadata), repr(values(loaded))]
    shown += [str(advice(loaded)), format(loaded.config), f"{loaded.config.wal_cloud.cloud!r}"]
    assert CANARY not in "\n".join(shown)
    assert loaded.config.wal_cloud.cloud.revealed_options()["secret_key"] == CANARY
    hidden = {value.key.rpartition(".")[2] for value in values(loaded) if value.shown == "***"}
    assert hidden == {"access_key", "secret_key", "session_token", "sas_x", "Password", "upstream", "etcd_password"}
    assert "disable_config_load" in {value.key.rpartition(".")[2] for value in values(loaded) if value.shown == "yes"}


@pytest.mark.parametrize(
    "build",
    [
        lambda: WalSection(cache_capacity=CANARY),
        lambda: Cloud(access_key=[CANARY]),
        lambda: Cloud(options={"a b": CANARY}),
    ],
)
def test_s9_a_section_that_a_program_builds_repeats_no_value(build):
    with pytest.raises(ValidationError) as caught:
        build()
    assert CANARY not in str(caught.value)


def test_s9_the_file_s_secrets_are_warned_about_and_the_environment_s_are_not():
    loaded = loads(SOUND.encode(), "f.yml", None, {"SECRET": CANARY})
    warned = {warning.key.rpartition(".")[2] for warning in advice(loaded) if "written into the file" in warning.what}
    assert warned == {"secret_key", "sas_x", "Password", "upstream", "etcd_password"}


@settings(max_examples=5_000 if LONG else 100, deadline=None)
@given(mutated(), st.integers(0, 10_000))
def test_s9_no_problem_repeats_a_value_wherever_it_stands(content, at):
    lines = content.split(b"\n")
    at %= len(lines)
    key, colon, _ = lines[at].partition(b":")
    if not colon or b"#" in key:
        return
    lines[at] = key + b": " + CANARY.encode()
    found = outcome(b"\n".join(lines))
    if isinstance(found, ConfigError):
        assert CANARY not in everything_told(found)
