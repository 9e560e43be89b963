import decimal
import json

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ister.schemas.columns.cells import UndecodableError, fitter
from ister.schemas.columns.evolve import TABLE_COLUMNS_MAX, AddField, Widen, merge
from ister.schemas.columns.types import Decimal, Field, List, Map, Opaque, Primitive, Struct, arrow_type, columns_in

P = Primitive


def struct(**fields):
    return Struct(tuple(Field(name, shape) for name, shape in fields.items()))


@pytest.mark.parametrize(
    ("table", "wanted", "grown"),
    [
        (P.INT, P.LONG, P.LONG),
        (P.FLOAT, P.DOUBLE, P.DOUBLE),
        (P.FLOAT, P.INT, P.DOUBLE),
        (Decimal(5, 2), Decimal(9, 2), Decimal(9, 2)),
        (Decimal(5, 2), Decimal(5, 1), Decimal(6, 2)),
        (Decimal(5, 2), P.LONG, Decimal(21, 2)),
        (List(P.INT), List(P.LONG), List(P.LONG)),
        (Map(P.FLOAT), Map(P.DOUBLE), Map(P.DOUBLE)),
    ],
)
def test_a_column_widens_where_iceberg_can_and_everything_fits(table, wanted, grown):
    merged, changes = merge(struct(x=table), struct(x=wanted))
    path = ("x", "element") if isinstance(table, List) else ("x", "value") if isinstance(table, Map) else ("x",)
    assert merged == struct(x=grown)
    inner = grown.element if isinstance(grown, List) else grown.value if isinstance(grown, Map) else grown
    assert changes == [Widen(path, inner)]


@pytest.mark.parametrize(
    ("table", "wanted"),
    [
        (P.LONG, P.INT),
        (P.DOUBLE, P.FLOAT),
        (P.DOUBLE, P.INT),
        (Decimal(20, 0), P.LONG),
        (Decimal(9, 2), Decimal(5, 1)),
        (P.JSON, P.STRING),
        (P.JSON, struct(a=P.INT)),
        (List(P.LONG), List(P.INT)),
    ],
)
def test_a_column_that_takes_it_already_stays(table, wanted):
    assert merge(struct(x=table), struct(x=wanted)) == (struct(x=table), [])


@pytest.mark.parametrize("wanted", [P.LONG, P.STRING, Decimal(9, 2), struct(a=P.INT), List(P.INT), Map(P.INT)])
def test_a_column_of_the_user_s_keeps_its_name_and_what_is_sent_stands_beside_it(wanted):
    merged, changes = merge(struct(x=Opaque()), struct(x=wanted))
    assert merged == struct(x=Opaque(), x_as_json=P.JSON)
    assert changes == [AddField(("x_as_json",), P.JSON)]
    assert merge(merged, struct(x=wanted)) == (merged, [])
    value = {P.LONG: 1, P.STRING: "s", Decimal(9, 2): decimal.Decimal("1.50")}.get(wanted, {"a": 1})
    value = [1] if isinstance(wanted, List) else value
    row = fitter(struct(x=wanted), merged)({"x": value})
    assert list(row) == ["x_as_json"]
    pa.array([row], arrow_type(merged))
    with pytest.raises(UndecodableError, match="of another type"):
        fitter(struct(x=wanted), struct(x=Opaque()))({"x": value})
    assert fitter(struct(x=wanted), struct(x=Opaque()))({}) == {}, "who sends nothing for it has no error"


@pytest.mark.parametrize(
    ("table", "wanted"),
    [
        (P.LONG, P.DOUBLE),
        (P.DOUBLE, P.LONG),
        (P.LONG, Decimal(20, 0)),
        (P.STRING, P.JSON),
        (P.STRING, P.BINARY),
        (P.STRING, struct(a=P.INT)),
        (struct(a=P.INT), P.STRING),
        (P.DATE, P.TIMESTAMP),
        (P.TIMESTAMP, P.TIMESTAMPTZ),
        (Decimal(38, 38), Decimal(38, 0)),
        (Decimal(5, 2), Decimal(5, 3)),
        (List(P.INT), P.INT),
        (List(P.INT), List(P.STRING)),
        (List(List(P.INT)), List(List(P.STRING))),
        (Map(P.INT), struct(a=P.INT)),
    ],
)
def test_what_cannot_be_one_column_gets_json_beside_it_once(table, wanted):
    merged, changes = merge(struct(x=table), struct(x=wanted))
    assert merged == struct(x=table, x_as_json=P.JSON)
    assert changes == [AddField(("x_as_json",), P.JSON)]
    assert merge(merged, struct(x=wanted)) == (merged, [])
    assert merge(merged, struct(x=P.BOOLEAN)) == (merged, [])


def test_structs_grow_inside_wherever_they_are():
    table = struct(a=struct(b=P.INT), c=List(struct(d=P.STRING)), e=Map(struct(f=P.INT)))
    wanted = struct(a=struct(b=P.LONG, n=P.INT), c=List(struct(d=P.INT)), e=Map(struct(f=P.LONG)))
    merged, changes = merge(table, wanted)
    assert merged == struct(
        a=struct(b=P.LONG, n=P.INT), c=List(struct(d=P.STRING, d_as_json=P.JSON)), e=Map(struct(f=P.LONG))
    )
    assert changes == [
        Widen(("a", "b"), P.LONG),
        AddField(("a", "n"), P.INT),
        AddField(("c", "element", "d_as_json"), P.JSON),
        Widen(("e", "value", "f"), P.LONG),
    ]


def names_of(*schemas):
    table = Struct()
    for names in schemas:
        table, _ = merge(table, Struct(tuple(Field(name, P.STRING) for name in names)))
    return [one.name for one in table.fields]


def test_names_that_spark_takes_for_one_keep_their_columns_whatever_comes_later():
    assert names_of(["a", "A"]) == ["a", "A_x559aead0"]
    assert names_of(["A"], ["a", "A"]) == ["A", "a_xca978112"]
    assert names_of(["a"], ["A"], ["A", "a"]) == ["a", "A_x559aead0"]


@pytest.mark.parametrize(
    "name", ["", " a", "a.b", "a`b", "a<b", "x_as_json", "X_AS_JSON", "a_x559aead0", "a" * 129, "\ud800"]
)
def test_a_name_that_cannot_be_a_column_gets_one_that_is_made(name):
    (column,) = names_of([name])
    assert column != name
    assert column[-10:-8] == "_x"
    assert "." not in column
    assert len(column) <= 110
    row = fitter(Struct((Field(name, P.STRING),)), struct(**{column: P.STRING}))({name: "v"})
    assert row == {column: "v"}


@pytest.mark.parametrize(
    "name", ["a", "A b", "größe", "x-y", "$id", "@type", "a/b", "day_20240101", "x_json", "a" * 128]
)
def test_a_plain_name_is_the_columns(name):
    assert names_of([name]) == [name]


def test_a_schemas_own_field_never_shares_the_column_that_was_made_for_another():
    table, _ = merge(struct(x=P.STRING), struct(x=P.INT))
    table, _ = merge(table, struct(x=P.INT, x_as_json=P.STRING))
    row = fitter(struct(x=P.INT, x_as_json=P.STRING), table)({"x": 1, "x_as_json": "mine"})
    own = [name for name in row if name.startswith("x_as_json_x")]
    assert row == {"x_as_json": "1", own[0]: "mine"}


def test_a_table_stops_growing_at_its_limit_and_rows_say_so():
    table = struct(**{f"c{index}": P.INT for index in range(TABLE_COLUMNS_MAX - 2)})
    wanted = struct(c0=P.LONG, big=struct(a=P.INT, b=P.INT), last=P.STRING)
    merged, changes = merge(table, wanted)
    assert changes == [Widen(("c0",), P.LONG), AddField(("last",), P.STRING)]
    assert columns_in(merged) == TABLE_COLUMNS_MAX
    assert merge(merged, wanted) == (merged, [])
    fit = fitter(wanted, merged)
    assert fit({"last": "a", "big": None}) == {"last": "a"}
    with pytest.raises(UndecodableError, match=r"\$\.big: the table has no column for it"):
        fit({"big": {"a": 1}})


@pytest.mark.parametrize(
    ("table", "wanted", "value", "placed"),
    [
        (P.LONG, P.DOUBLE, 3.0, {"x": 3}),
        (P.LONG, P.DOUBLE, 3.5, {"x_as_json": "3.5"}),
        (P.LONG, P.DOUBLE, 1e19, {"x_as_json": "1e+19"}),
        (P.LONG, P.DOUBLE, float("nan"), {"x_as_json": '"NaN"'}),
        (P.LONG, Decimal(20, 0), (1 << 64) - 1, {"x_as_json": '"18446744073709551615"'}),
        (P.LONG, Decimal(4, 2), decimal.Decimal("7.00"), {"x": 7}),
        (P.LONG, Decimal(4, 2), decimal.Decimal("7.01"), {"x_as_json": '"7.01"'}),
        (P.DOUBLE, P.LONG, (1 << 53) + 1, {"x_as_json": "9007199254740993"}),
        (P.DOUBLE, P.LONG, 1 << 53, {"x": float(1 << 53)}),
        (P.DOUBLE, Decimal(5, 2), decimal.Decimal("0.50"), {"x": 0.5}),
        (P.DOUBLE, Decimal(5, 2), decimal.Decimal("0.10"), {"x_as_json": '"0.10"'}),
        (P.FLOAT, P.DOUBLE, 0.1, {"x_as_json": "0.1"}),
        (P.FLOAT, P.DOUBLE, 1e300, {"x_as_json": "1e+300"}),
        (P.FLOAT, P.DOUBLE, 0.5, {"x": 0.5}),
        (Decimal(5, 2), P.DOUBLE, 0.5, {"x": decimal.Decimal("0.50")}),
        (Decimal(5, 2), P.DOUBLE, 0.1, {"x_as_json": "0.1"}),
        (Decimal(5, 2), P.DOUBLE, float("inf"), {"x_as_json": '"Infinity"'}),
        (Decimal(5, 2), P.LONG, 1000, {"x_as_json": "1000"}),
        (P.STRING, P.BINARY, b"\xff", {"x_as_json": '"/w=="'}),
        (P.STRING, P.DATE, 0, {"x_as_json": '"1970-01-01"'}),
        (P.STRING, P.TIMESTAMPTZ, 1, {"x_as_json": '"1970-01-01T00:00:00.000001Z"'}),
        (P.STRING, struct(a=List(P.BINARY), b=Map(P.DATE)), {"a": [b"a", None], "b": {"k": 1, "n": None}},
         {"x_as_json": '{"a":["YQ==",null],"b":{"k":"1970-01-02","n":null}}'}),
        (List(P.LONG), List(P.DOUBLE), [1.0, None], {"x": [1, None]}),
        (List(P.LONG), List(P.DOUBLE), [1.0, 1.5], {"x_as_json": "[1.0,1.5]"}),
        (P.JSON, P.STRING, "a", {"x": '"a"'}),
    ],
)  # fmt: skip
def test_a_value_is_placed_without_loss_or_becomes_json(table, wanted, value, placed):
    fit = fitter(struct(x=wanted), struct(x=table, x_as_json=P.JSON))
    assert fit({"x": value}) == placed
    if "x_as_json" in placed:
        with pytest.raises(UndecodableError):
            fitter(struct(x=wanted), struct(x=table))({"x": value})


def shapes(depth=2):
    leaves = st.one_of(
        st.sampled_from(list(P)),
        st.integers(1, 38).flatmap(lambda p: st.builds(Decimal, st.just(p), st.integers(0, p))),
    )
    if not depth:
        return leaves
    inner = shapes(depth - 1)
    return st.one_of(leaves, leaves, structs(inner), st.builds(List, inner), st.builds(Map, inner))


def structs(inner):
    names = st.sampled_from(["a", "A", "b", "c.d", "", "b_as_json", "a_x559aead0"])
    fields = st.lists(st.builds(Field, names, inner), min_size=1, max_size=4, unique_by=lambda one: one.name)
    return st.builds(lambda found: Struct(tuple(found)), fields)


def values(shape):
    match shape:
        case P.BOOLEAN:
            some = st.booleans()
        case P.INT:
            some = st.integers(-(1 << 31), (1 << 31) - 1)
        case P.LONG:
            some = st.integers(-(1 << 63), (1 << 63) - 1)
        case P.FLOAT:
            some = st.floats(width=32)
        case P.DOUBLE:
            some = st.floats()
        case P.DATE:
            some = st.integers(-719_162, 2_932_896)
        case P.TIMESTAMP | P.TIMESTAMPTZ:
            some = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)
        case P.STRING:
            some = st.text(st.characters(exclude_categories=["Cs"]), max_size=3)
        case P.BINARY:
            some = st.binary(max_size=3)
        case P.JSON:
            some = st.sampled_from([1, "a", [None], {"x": 1.5}])
        case Decimal():
            top = 10**shape.precision - 1
            some = st.integers(-top, top).map(
                lambda n: decimal.Context(prec=50).scaleb(decimal.Decimal(n), -shape.scale)
            )
        case List():
            some = st.lists(values(shape.element), max_size=2)
        case Map():
            some = st.dictionaries(st.sampled_from(["k", ""]), values(shape.value), max_size=2)
        case Struct():
            some = st.fixed_dictionaries({one.name: values(one.shape) for one in shape.fields})
    return st.one_of(st.none(), some) if not isinstance(shape, Struct) else some


@given(st.data(), st.lists(structs(shapes()), min_size=1, max_size=5))
@settings(deadline=None, max_examples=150)
def test_merging_is_idempotent_and_what_fitted_once_fits_for_ever(data, wanted):
    table = Struct()
    for index, one in enumerate(wanted):
        before = table
        table, changes = merge(table, one)
        assert merge(table, one) == (table, [])
        assert applied(before, changes) == table
        assert len({field.name.lower() for field in table.fields}) == len(table.fields)
        assert {field.name for field in before.fields} <= {field.name for field in table.fields}
        for earlier in wanted[: index + 1]:
            assert merge(table, earlier) == (table, []), "an earlier version wants nothing more"
            value = data.draw(values(earlier))
            row = fitter(earlier, table)(value)
            built = pa.array([row], arrow_type(table))
            built.validate(full=True)
            text = json.dumps(value, default=str)
            assert sum(one is not None for one in row.values()) == sum(one is not None for one in value.values()), text


def applied(table, changes):
    """Do to a table's shape what the changes say, as a catalog would."""
    for change in changes:
        table = put(table, change.path, change.shape, new=isinstance(change, AddField))
    return table


def put(shape, path, leaf, *, new):
    if not path:
        return leaf
    head, *rest = path
    match shape:
        case List():
            assert head == "element"
            return List(put(shape.element, rest, leaf, new=new))
        case Map():
            assert head == "value"
            return Map(put(shape.value, rest, leaf, new=new))
    fields = {one.name: one.shape for one in shape.fields}
    if not rest and new:
        assert head not in fields
        fields[head] = leaf
    else:
        fields[head] = put(fields[head], rest, leaf, new=new)
    return Struct(tuple(Field(name, one) for name, one in fields.items()))
