"""Small doors to the outside, each a Protocol with its real implementation."""
