"""The same commits on S3, with a SQL catalog and with Glue: configuration alone."""

import pytest

from ister.lake.catalog import LakeCatalog
from ister.lake.errors import CommitRefusedError
from parts.lake import TOPIC, append, assert_exact
from services.moto import shared_moto


def properties(kind, directory):
    moto = shared_moto()
    access = {"access-key-id": "testkey", "secret-access-key": "testsecret", "region": "us-east-1"}
    return {
        "warehouse": f"s3://{moto.make_bucket()}/lake",
        "s3.endpoint": moto.endpoint,
        **{f"s3.{name}": value for name, value in access.items()},
        **(
            {
                "type": "glue",
                "glue.endpoint": moto.endpoint,
                **{f"glue.{name}": value for name, value in access.items()},
            }
            if kind == "glue"
            else {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db"}
        ),
    }


@pytest.mark.parametrize("kind", ["sql", "glue"])
def test_a_table_in_s3_is_made_claimed_and_committed_to_exactly_once(kind, tmp_path):
    settings = properties(kind, tmp_path)
    first, second = LakeCatalog.open(f"ister_{kind}", settings), LakeCatalog.open(f"ister_{kind}", settings)
    old = first.table(TOPIC, 1)
    assert old.location == f"{settings['warehouse']}/default/orders"
    assert "py-io-impl" not in old.io_properties
    old.claim(1)
    for _ in range(12):
        assert isinstance(append(old, 5), int)
    new = second.table(TOPIC, 1)
    new.claim(2)
    with pytest.raises(CommitRefusedError):
        append(old, 5)
    append(new, 5)
    assert new.upto(0) == 65
    assert_exact(new)
    first.close()
    second.close()
