"""PostgreSQL: oncekey, its peers and pgbench against one server with full durability."""
