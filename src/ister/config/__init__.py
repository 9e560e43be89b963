"""The configuration: typed models of the YAML file, and the only reader of the environment."""

from ister.config.advice import advice
from ister.config.load import DEFAULT, FROM_DATA_DIR, Loaded, Origin, load, loads
from ister.config.metadata_keys import EtcdMetadata, MemoryMetadata, Metadata, SqliteMetadata
from ister.config.models import (
    Cloud,
    Config,
    FileSync,
    Retention,
    Rotation,
    Uploader,
    Wal,
    WalCloud,
)
from ister.config.policies import CompletePolicies, Policies, merge
from ister.config.problems import ConfigError, Problem
from ister.config.serving import AdvertisedListeners, Auth, Broker, Dispatch
from ister.config.values import Value, values

__all__ = [
    "DEFAULT",
    "FROM_DATA_DIR",
    "AdvertisedListeners",
    "Auth",
    "Broker",
    "Cloud",
    "CompletePolicies",
    "Config",
    "ConfigError",
    "Dispatch",
    "EtcdMetadata",
    "FileSync",
    "Loaded",
    "MemoryMetadata",
    "Metadata",
    "Origin",
    "Policies",
    "Problem",
    "Retention",
    "Rotation",
    "SqliteMetadata",
    "Uploader",
    "Value",
    "Wal",
    "WalCloud",
    "advice",
    "load",
    "loads",
    "merge",
    "values",
]
