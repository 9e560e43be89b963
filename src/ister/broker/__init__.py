"""The broker: the Danube protocol's services over the storage, one process, one event loop."""
