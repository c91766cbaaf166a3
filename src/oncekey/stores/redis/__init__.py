"""`redis://host:6379/0`: a store on Redis or Valkey: one server, with Sentinel, or a Cluster."""
