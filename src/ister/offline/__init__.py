"""Tools that work on a data directory without a broker."""
