"""`oncekey demo` in the terminal: serving until Ctrl-C, playing the scenarios, and their looks."""
