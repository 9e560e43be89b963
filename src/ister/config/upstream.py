"""Where the keys of Danube's own files went that have another place here, or none yet; told instead of "not a known key"."""

HINTS = {
    "broker.host": "write broker_host at the top of the file",
    "broker.ports": "write broker_port, admin_port and prom_port at the top of the file",
    "broker.advertised_listeners": "write advertised_listeners at the top of the file",
    "meta_store": "there is no Raft here; wal_cloud.metadata says where metadata is kept",
    "meta_store_host": "write wal_cloud.metadata.etcd_endpoint",
    "meta_store_port": "write wal_cloud.metadata.etcd_endpoint",
    "load_manager": "there is one broker, so there is nothing to balance; take it out",
    "auth.tls": "TLS comes in a later release; take it out",
    "auth.jwt": "tokens come in a later release; take it out",
    "auth.super_admins": "roles come in a later release; take it out",
    "policies.max_dispatch_rate": "write max_subscription_dispatch_rate, which holds for each subscription",
}
"""By the whole path of the key."""
