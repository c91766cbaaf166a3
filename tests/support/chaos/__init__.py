"""Chaos: payment APIs and consumers on a real PostgreSQL pair, under faults, checked afterwards.

    python -m tests.support.chaos --seed 7 --minutes 10 --html timeline.html

`chaos_plan` decides by a seed which operations and faults happen when. `chaos_environment` starts
the processes, `nemesis` injects the faults, with `crossing_faults` for those in which two parts
meet, `chaos_clients` sends the operations and retries them.
Everybody appends to a history (`chaos_history`). After the run `invariant_rules` reads it and says
what was violated, `violation_story` tells one violation in sentences, and `run_timeline` draws the
run as an HTML page.
"""
