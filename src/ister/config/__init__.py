"""The configuration: typed models of the YAML file, and the only reader of the environment."""

from ister.config.advice import advice
from ister.config.broker_models import AdvertisedListeners, Auth, BrokerSection, DispatchSection
from ister.config.load import DEFAULT, FROM_DATA_DIR, Loaded, Origin, load, loads
from ister.config.metadata_models import (
    EtcdMetadataSettings,
    MemoryMetadataSettings,
    MetadataSection,
    SqliteMetadataSettings,
)
from ister.config.models import (
    Cloud,
    Config,
    FileSync,
    RetentionSection,
    Rotation,
    UploaderSection,
    WalCloud,
    WalSection,
)
from ister.config.policies import CompletePolicies, Policies, merge
from ister.config.problems import ConfigError, Problem
from ister.config.values import Value, values

__all__ = [
    "DEFAULT",
    "FROM_DATA_DIR",
    "AdvertisedListeners",
    "Auth",
    "BrokerSection",
    "Cloud",
    "CompletePolicies",
    "Config",
    "ConfigError",
    "DispatchSection",
    "EtcdMetadataSettings",
    "FileSync",
    "Loaded",
    "MemoryMetadataSettings",
    "MetadataSection",
    "Origin",
    "Policies",
    "Problem",
    "RetentionSection",
    "Rotation",
    "SqliteMetadataSettings",
    "UploaderSection",
    "Value",
    "WalCloud",
    "WalSection",
    "advice",
    "load",
    "loads",
    "merge",
    "values",
]
