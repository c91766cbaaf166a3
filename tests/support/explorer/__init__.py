"""The interleaving explorer: every order and every crash, of the real flow on the real machine.

    code         the code under test, real or mutated
    scenario    who tries the key, and how much may go wrong; scenarios: those explored always
    liveness, local, process, options    what one attempt holds and can do next
    ledger, invariants    what an all-seeing bookkeeper remembers, and the promises
    world, kinds, explorer, words    all attempts and the store; the search; the way in words
    races, race_on_sqlite    the statements of racing SQLite programs, in every order
    mutation    changed copies of real modules, for the gate in tests/explore

Try `python -m tests.support.explorer`.
"""
