"""Several brokers: subscription leases, read-only brokers."""
