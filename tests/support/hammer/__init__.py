"""The hammer: many processes work on a few keys of one real store at once, then a checker reads
their logs.

How it works. A parent process forks the workers and a sweeper. Each worker runs attempts, through
Once and by bare commands, with random pauses, lost commands, lost replies and crashes, and logs
every command with its reply and both times. The checker then holds the invariants of
CONTRIBUTING.md against the logs of all workers, key by key; it never asks the store. To show that
it finds something, it is also run on stores that are broken on purpose, and on mutants.

    hammer_run      the plan of a run, and the parent that forks the workers
    worker          what one worker does
    recorder        the store that a worker uses: it logs commands, and loses some
    command_log     one line per command, body and result, in a file of each worker
    lost_replies    which commands without a reply took effect, by the replies to their repeats
    key_history     the log of one key in order: grants, outcomes, generations
    checker         the invariants
    saboteurs       stores that are broken on purpose

How to run it. `python -m tests.support.hammer --store sqlite:////tmp/keys.db --seconds 60` prints
counts and violations as JSON; `pytest tests/hammer` runs some rounds of it, with ONCEKEY_SOAK=1 a
minute. In code: `report = run_hammer(HammerPlan("sqlite:////tmp/keys.db", seconds=60))`.
"""

from tests.support.hammer.checker import HammerReport
from tests.support.hammer.hammer_run import HammerPlan, run_hammer

__all__ = ["HammerPlan", "HammerReport", "run_hammer"]
