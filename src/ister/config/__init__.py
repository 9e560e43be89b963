"""The configuration: typed models of the YAML file, and the only reader of the environment."""

from ister.config.advice import advice
from ister.config.load import Loaded, load, loads
from ister.config.models import Cloud, Config, WalSection
from ister.config.problems import ConfigError, Problem
from ister.config.values import values

__all__ = ["Cloud", "Config", "ConfigError", "Loaded", "Problem", "WalSection", "advice", "load", "loads", "values"]
