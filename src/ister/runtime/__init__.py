"""A process assembled from a configuration."""
