"""Stores beyond one machine: Valkey, its Cluster and etcd, beside their raw limits and peers."""
