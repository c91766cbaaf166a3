"""The explorer: a model checker that runs the production code in every order, with every crash.

What it is. Several attempts, each with its heartbeat, share one key in one store. The explorer
visits every state they can reach together, however their commands interleave, replies get lost,
processes crash and the clock moves, and checks the invariants of CONTRIBUTING.md in each.

How it works. It drives the generators of core (attempt_flow, heartbeat_flow) and the state machine
that ship: it is one more driver beside the sync and the asyncio engine. A state is a value: the
record, the clock, and where each generator stands, read from its frames. The search is breadth
first, so a violation comes with one of the shortest ways to it. The SQL of the stores is raced
separately: all orders of the statements of two or three programs, on a real database.

    code_under_test             the functions under test: the real ones, or those of a mutant
    scenario, scenarios         who tries the key and how much may go wrong; those always explored
    generator_states,           where a generator stands, and which of its variables still count
    live_variables
    process, moves              one attempt as a value, and what it can do next
    ledger, invariants          what really happened, and the promises to hold it against
    world, search               all attempts with the store, and the search through their states
    decision_kinds,             what an exploration has met, and counter-examples as text
    descriptions
    race_scenarios              what races on a database, and how a result is judged
    sqlite_races,               every order of the statements on SQLite and on PostgreSQL
    postgres_races,
    postgres_race_schema
    mutation                    changed copies of real modules, for tests/support/mutants

How to run it. `python -m tests.support.explorer` explores all scenarios and the races on SQLite and
prints the counts; `pytest tests/explore` does so with assertions, and checks that every seeded
mutant is caught.
"""
