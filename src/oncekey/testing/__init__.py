"""Tools for testing with and against oncekey: contract suite, fake clock, faults, explorer."""
