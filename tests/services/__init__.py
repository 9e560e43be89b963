"""Real services for the tests, started when a test needs them and stopped with the run."""
