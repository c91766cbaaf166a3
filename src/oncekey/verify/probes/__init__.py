"""The probes, one for each guarantee, in the order in which they run."""
