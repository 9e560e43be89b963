"""Schemas that change fifty times: payloads of every version so far decode to what was written, and nothing stops."""

from random import Random

import pytest

from ister.schemas.columns.evolve import merge
from ister.schemas.columns.types import Struct
from ister.schemas.decode import Decoders, shape_of
from parts.schema_chains import Avro, Json, Protobuf, change, copied, random_struct, seen_in
from parts.typed import decode_column

CHANGES = 50


@pytest.mark.parametrize("compatible", [True, False], ids=["compatible", "anything"])
@pytest.mark.parametrize("language", [Json, Avro, Protobuf])
def test_fifty_changes_stop_nothing_and_lose_nothing(language, compatible, count, tell):
    rows = hostile = refused = 0
    for seed in range(count(2, 60)):
        chance = Random(f"{language.name} {compatible} {seed}")
        root = random_struct(chance, 2)
        table, versions, schemas = Struct(), [], {}
        for version in range(1, CHANGES + 1):
            writer = language()
            schema = writer.schema(copied(root))
            table, _ = merge(table, shape_of(schema))
            versions.append(writer)
            schemas[7, version] = schema
            chosen = {version, 1, *(chance.randint(1, version) for _ in range(6))}
            written = [(one, versions[one - 1].value(chance)) for one in chosen for _ in range(2)]
            payloads = [versions[one - 1].payload(value) for one, value in written]
            broken = [mutated(chance, payload) for payload in payloads]
            numbers = [one for one, _ in written]
            decoders = Decoders(schemas, table, (7, version))
            found = decode_column(decoders, payloads + broken, [7] * 2 * len(written), numbers + numbers)
            found.values.validate(full=True)
            assert len(found.values) == len(found.errors) == 2 * len(written)
            got = found.values.to_pylist(maps_as_pydicts="strict")
            errors = found.errors.to_pylist()
            for index, (one, value) in enumerate(written):
                assert errors[index] is None, (seed, version, one, errors[index])
                assert all(seen_in(got[index], name, part) for name, part in value.items()), (seed, version, one, value)
            rows += len(written)
            hostile += len(broken)
            refused += sum(error is not None for error in errors[len(written) :])
            assert all(value is None for value, error in zip(got, errors, strict=True) if error is not None)
            change(chance, root, language.name, compatible=compatible)
    tell("F33", f"{language.name}: {rows} rows of changing schemas, {hostile} mutated ones, {refused} marked, 0 lost")


def mutated(chance, payload):
    if chance.random() < 0.2:
        return chance.randbytes(chance.randrange(40))
    made = bytearray(payload)
    for _ in range(chance.randint(1, 4)):
        if made:
            made[chance.randrange(len(made))] = chance.randrange(256)
    return bytes(made[: chance.randint(0, len(made))] if chance.random() < 0.3 else made)
