"""Topics of a broker: records, producers, subscriptions, expiry."""
