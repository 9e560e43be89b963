"""G1, G2. A data directory knows its cluster and its path: a moved one is recognised, a copy is refused until it is adopted."""

import asyncio
import shutil

import pytest

from ister.config import load
from ister.core.errors import CorruptMetadataError
from ister.runtime.compose import open_metadata
from ister.runtime.identity import (
    CopiedDirectoryError,
    MovedDirectoryError,
    adopt_directory,
    claim_directory,
    relocate_directory,
    require_own_directory,
)
from parts.lake import TOPIC, append, lake_of


def config_of(home):
    return load(None, home, {}).config


async def with_metadata(home, act):
    config = config_of(home)
    metadata = await open_metadata(config, read_only=False)
    try:
        return await act(metadata, config)
    finally:
        await metadata.close()


def claim(home):
    return asyncio.run(with_metadata(home, claim_directory))


def with_table(home):
    lake = lake_of(home)
    table = lake.table(TOPIC, 1)
    table.claim(1)
    append(table, 10)
    lake.close()


def test_an_identity_is_created_once_and_kept(tmp_path):
    first = claim(tmp_path / "a")
    assert claim(tmp_path / "a") == first
    assert claim(tmp_path / "b").cluster_id != first.cluster_id
    assert first.path == str(tmp_path / "a" / "metadata.db")


def test_a_moved_directory_without_tables_is_served_from_its_new_path(tmp_path):
    first = claim(tmp_path / "old")
    moved = claim((tmp_path / "old").rename(tmp_path / "new"))
    assert moved == (first.cluster_id, str(tmp_path / "new" / "metadata.db"))


def test_a_moved_directory_with_tables_names_the_command_that_relocates_them(tmp_path):
    claim(tmp_path / "old")
    with_table(tmp_path / "old")
    home = (tmp_path / "old").rename(tmp_path / "new")
    with pytest.raises(MovedDirectoryError, match="ister lake relocate"):
        claim(home)
    with pytest.raises(MovedDirectoryError):
        asyncio.run(require_own_directory(config_of(home)))


def test_a_copy_is_refused_until_it_is_adopted_and_the_original_is_not(tmp_path):
    first = claim(tmp_path / "original")
    copy = shutil.copytree(tmp_path / "original", tmp_path / "copy")
    with pytest.raises(CopiedDirectoryError, match="ister adopt"):
        claim(copy)
    with pytest.raises(CopiedDirectoryError):
        asyncio.run(require_own_directory(config_of(copy)))
    with pytest.raises(CopiedDirectoryError):
        asyncio.run(relocate_directory(config_of(copy)))
    adopted = asyncio.run(adopt_directory(config_of(copy)))
    assert adopted.cluster_id != first.cluster_id
    assert claim(copy) == (adopted.cluster_id, str(copy / "metadata.db"))
    assert claim(tmp_path / "original") == first


def test_a_moved_directory_is_served_once_its_tables_are_relocated(tmp_path):
    first = claim(tmp_path / "old")
    with_table(tmp_path / "old")
    home = (tmp_path / "old").rename(tmp_path / "new")
    assert asyncio.run(relocate_directory(config_of(home))) == ["default.orders"]
    assert claim(home).cluster_id == first.cluster_id


def test_an_adopted_copy_has_tables_of_its_own(tmp_path):
    claim(tmp_path / "original")
    with_table(tmp_path / "original")
    copy = shutil.copytree(tmp_path / "original", tmp_path / "copy")
    assert asyncio.run(adopt_directory(config_of(copy))).tables == ["default.orders"]
    claim(copy)
    assert lake_of(copy).table(TOPIC, 1).location == f"file://{copy}/warehouse/default/orders"
    assert lake_of(tmp_path / "original").table(TOPIC, 1).location.startswith(f"file://{tmp_path}/original/")


def test_a_copy_of_a_directory_that_was_deleted_is_a_moved_one(tmp_path):
    first = claim(tmp_path / "original")
    copy = shutil.copytree(tmp_path / "original", tmp_path / "copy")
    shutil.rmtree(tmp_path / "original")
    assert claim(copy).cluster_id == first.cluster_id


def test_another_directory_at_the_old_path_is_not_the_original(tmp_path):
    first = claim(tmp_path / "old")
    home = (tmp_path / "old").rename(tmp_path / "new")
    claim(tmp_path / "old")
    assert claim(home).cluster_id == first.cluster_id


def test_a_directory_that_is_reached_by_a_link_is_the_same(tmp_path):
    first = claim(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert claim(tmp_path / "link") == first


def test_a_damaged_identity_is_named(tmp_path):
    async def damage(metadata, config):
        await metadata.put(f"{config.wal_cloud.uploader.root_prefix}/identity", b"{")

    claim(tmp_path)
    asyncio.run(with_metadata(tmp_path, damage))
    with pytest.raises(CorruptMetadataError, match="identity"):
        claim(tmp_path)
