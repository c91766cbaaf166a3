"""HTTP: the same app bare, behind oncekey and behind its peers, on one server."""
