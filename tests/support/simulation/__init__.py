"""The simulation: many processes, callers and faults around the production code, in virtual time.

What it is. The explorer sees every order of events in small worlds. The simulation sees single
orders of larger ones, but very many: up to four processes with clocks of their own, callers that
retry, bodies that outlast their leases, a network that loses, delays, repeats and reorders, a store
that is down or crashes or whose clock is set, crashes and pauses, a deployment with other settings,
completers, operators and sweepers. Each world is drawn from a seed, and the same seed gives the
same world on every machine.

How it works. One more driver of the flows that ship (attempt_flow, heartbeat_flow, step_flow,
recovery, abandoned, late_owner) and of state_machine, in a discrete-event loop. A judge, who sees
everything at once, holds each decision, effect and outcome against I1 to I14, most by the checks of
the explorer. When a world has come to rest, every result that was reached must be stored (I14) and
every key must be claimable or unknown (I10, I11).

    plan, drawn_plan            a world as data, and how it is drawn from a seed
    simulation                  the event loop, the network, the faults, the end
    simulated_process,          processes with their clocks, and the store with its own
    simulated_store
    task, attempt_task,         the drivers of the flows
    step_task, background_tasks
    judge                       what has really happened, and the invariants
    seed_search, smaller_plan   runs many seeds; makes a failing world small
    plan_text                   a world in sentences

How to run it. `pytest tests/simulation` runs five thousand worlds, `make simulate` a million, and
`python -m tests.support.simulation --seed 17 -v` tells the story of one.

What it leaves out, on purpose:

1.  The engines: batches, shared claims and polls of duplicates, the replay cache, threads, tasks
    and signals. tests/engine and the hammer have them. Of duplicates only the rule is checked.
2.  The stores: a command is applied at one moment, as S1 promises. Their SQL is raced by the
    explorer, and crashed by tests/fault.
3.  A caller's own transaction, where nothing is leased; moves from store to store, which the
    explorer has; queues and HTTP, whose rules begin where an attempt has ended (I15).
4.  A body that is paused between its last look at the clock and its act: no store can see that. A
    careful body looks and acts at one moment. One that does not look is held to less: it acts once
    per generation if it is not retry-safe, and it may act late.
5.  What the guarantee excludes: a `recover` function that lies, clocks that drift apart by more
    than a message takes within one lease, a store's clock that is set ahead. The last one happens,
    and then owners whose lease was cut are not held to I5, and nobody says "nothing happened" of a
    body that may yet begin.
6.  Numbers: at most nine callers, four processes and three keys, and minutes of virtual time.
"""
