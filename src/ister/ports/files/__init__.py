"""The file-system port."""
