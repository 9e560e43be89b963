"""IcebergStorage: many topics on log and table."""
