"""What tests share: worlds, brokers, clients, checks."""
