"""The mutants: seeded bugs, and proof that each of them is caught by at least two tools.

What it is. A mutant is the real source with one thing wrong. The design names twelve. Each must be
caught by two or more of the tools that check oncekey, because a tool that finds no bug may also be
one that looks at nothing.

How it works. The explorer and the simulation drive a changed copy of a module in this process. The
contract suite, the hammer and the chaos runs are processes of their own, started on a copy of the
source tree in which the edits are made, so everything they import or run has the bug. Caught means:
by the test or the invariant that the bug breaks, which the unchanged source passes. A mutant whose
edit changes nothing is caught by no tool.

    core_mutants        seeded bugs of the core and of the program of SQLite
    sql_mutants         seeded bugs of the SQL of PostgreSQL
    no_op_mutants       edits that change nothing
    source_tree         a copy of the source tree with the edits of a mutant
    explorer_tool,      what each tool says of a mutant
    contract_tool,
    hammer_tool
    expected_catches    the test and the rule that must catch each of the twelve
    catch_table         mutants and tools as a table

How to run it. `make mutants` runs the whole table, and `python -m tests.support.mutants m1 n1` two
rows of it. `pytest tests/explore/test_mutants.py tests/explore/test_mutant_catches.py` runs what
`make test` does.
"""
