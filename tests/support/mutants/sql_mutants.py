"""Seeded bugs in the SQL of the PostgreSQL store: each is the real text with one thing wrong.

Every one of them is looked for among all orders of the statements and commits of one race, on a
schema of its own (postgres_races.py). m11 is of the design's list of twelve.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.support.explorer.mutation import Edit
from tests.support.explorer.postgres_race_schema import PLAIN, RING, Database, Setup
from tests.support.explorer.postgres_races import race_on_postgres
from tests.support.explorer.race_scenarios import RACES
from tests.support.explorer.sqlite_races import RaceReport


@dataclass(frozen=True)
class SQLMutant:
    """A seeded bug: the setup and the race that catch it, and what it breaks."""

    number: str
    name: str
    setup: Setup
    where: str
    breaks: str


_LONE = "AND (t.state = 1 OR (t.state = 4 AND p_state[1] <> 4))"
_MANY = "            AND (t.state = 1 OR (t.state = 4 AND u.state <> 4))\n            AND (v_held"


def _mutant(
    number: str, name: str, setup: Setup, where: str, breaks: str, *edits: tuple[str, str]
) -> SQLMutant:
    changed = replace(setup, edits=tuple(Edit(old, new) for old, new in edits))
    return SQLMutant(number, name, changed, where, breaks)


_LOCK = (
    "PERFORM pg_advisory_xact_lock(uuid_hash_extended(p_id[i], {seed} + 1))\n"
    "        FROM unnest(v_allowed) i;"
)
_LOCK_AND_PROBE = """
        SELECT array_agg(probe.i) INTO v_seen FROM (
            SELECT i, pg_advisory_xact_lock(uuid_hash_extended(p_id[i], {seed} + 1)) AS locked
            FROM unnest(v_allowed) i
        ) probe
        WHERE probe.locked::text = ''
            AND EXISTS (SELECT FROM {schema}.records t WHERE t.id = p_id[probe.i]);
"""
_CLOCK = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
_SET_BACK = "a key from before the clock was set back"
_FLOOR = "SELECT m.until INTO v_floor FROM {schema}.meta m WHERE m.name = 'deleted-fences';"
_LONE_LOCK = "_shared(uuid_hash_extended(p_id, {seed}))\n    THEN\n"
_INSERT_IN_ANY_TRY = ("IF v_try > 1 OR (p_how = 0 AND p_slots = 1) THEN", "IF true THEN")

M11 = _mutant(
    "m11", "advisory lock and probe in one statement", Setup(RING), "a new key", "I1",
    (_LOCK, _LOCK_AND_PROBE), _INSERT_IN_ANY_TRY,
)  # fmt: skip

SQL_MUTANTS = (
    _mutant(
        "q1", "no second look after the lock", Setup(RING), "a new key", "I1",
        _INSERT_IN_ANY_TRY,
    ),
    _mutant(
        "q2", "no lock at all on the ring", Setup(RING), "a new key", "I1", (_LOCK, ""),
    ),
    _mutant(
        "q3", "rewrite without compare-and-set", Setup(PLAIN, "advisory_lock"),
        "takeover and renewal", "I5",
        ("WHERE o.id = t.id AND o.revision = t.revision AND o.fence = t.fence;",
         "WHERE o.id = t.id;"),
    ),
    _mutant(
        "q4", "row lock without looking again", Setup(PLAIN, "row_lock"), "a dead owner's key",
        "S1",
        ("v_rule := {schema}.claim_rule_1(\n"
         "                        rec, p_owner[ord], p_fingerprint[ord], p_retry_safe[ord], at);",
         "v_rule := v_rule;"),
    ),
    _mutant(
        "q5", "replace without compare-and-set", Setup(PLAIN, "portable", guard=False),
        "a dead owner's key", "I5",
        ("AND t.fence = u.old_fence AND t.revision = u.old_revision", ""),
    ),
    _mutant(
        "q6", "finish without owner check", Setup(PLAIN, in_batches=True),
        "takeover and the zombie's finish", "I2",
        (f"AND t.owner = u.owner AND t.fence = u.fence\n{_MANY}", _MANY),
    ),
    _mutant(
        "q7", "a lone finish without owner check", Setup(PLAIN),
        "takeover and the zombie's finish", "I2",
        ("WHERE t.id = p_id[1] AND t.owner = p_owner[1] AND t.fence = p_fence[1]",
         "WHERE t.id = p_id[1]"),
    ),
    _mutant(
        "q8", "a lone finish without state check", Setup(PLAIN), "two endings", "I4",
        (_LONE, ""),
    ),
    _mutant(
        "q9", "finish without state check", Setup(PLAIN, in_batches=True), "two endings", "I4",
        (_MANY, "            AND (v_held"),
    ),
    _mutant(
        "q10", "clock read twice in one decision", Setup(PLAIN), "a new key", "S3",
        ("VALUES (p_id, p_owner, v_now,", f"VALUES (p_id, p_owner, {_CLOCK},"),
    ),
    _mutant(
        "q11", "clock read twice, in batches", Setup(PLAIN, in_batches=True), "a new key", "S3",
        ("SELECT u.id, u.owner, n, n, n + u.lease",
         f"SELECT u.id, u.owner, {_CLOCK}, n, n + u.lease"),
    ),
    _mutant(
        "q12", "takeover of another request", Setup(PLAIN), "another request", "S1",
        ("WHEN t.fingerprint <> p_fingerprint OR t.state <> 1", "WHEN t.state <> 1"),
    ),
    _mutant(
        "q13", "sweeper blind to live leases", Setup(PLAIN), "a live record and the sweeper", "I12",
        ("AND due.audit_until <= c.n", ""),
        ("AND t.sweep_at <= (SELECT c.n FROM c)", "AND t.created_at <= (SELECT c.n FROM c)"),
    ),
    _mutant(
        "q14", "rotation blind to live records", Setup(RING), "a live record and the sweeper",
        "I12",
        ("CONTINUE WHEN v_live > CASE WHEN back = p_slots - 1 THEN p_moves ELSE 0 END;", ""),
        ("CONTINUE WHEN v_rows = v_live;", "CONTINUE WHEN v_rows = 0;"),
        ("FROM %1$s t WHERE t.sweep_at > $1 OR (%3$s)'",
         "FROM %1$s t WHERE (t.sweep_at > $1 OR (%3$s)) AND false'"),
    ),
    _mutant(
        "q15", "a moved record is left behind as well", Setup(RING), "renewal and the sweeper",
        "I1",
        ("EXECUTE format('TRUNCATE %s', v_table);",
         "EXECUTE format('DELETE FROM %s WHERE sweep_at <= $1', v_table) USING n;"),
        ("CONTINUE WHEN v_rows = v_live;", "CONTINUE WHEN v_rows = 0;"),
        ("more := removed = 0;", ""),
    ),
    _mutant(
        "q16", "the sweeper takes what nobody has decided", Setup(PLAIN),
        "an undecided key and the sweeper", "I12",
        ("AND due.audit_until <= c.n", ""),
    ),
    _mutant(
        "q17", "rotation drops what nobody has decided", Setup(RING),
        "an undecided key and the sweeper", "I12",
        ("SELECT gone.*, -1 FROM gone'", "SELECT gone.*, -1 FROM gone WHERE false'"),
    ),
    _mutant(
        "q18", "a late finish over what somebody resolved", Setup(PLAIN),
        "an unknown key's owner and recovery", "I2",
        (_LONE, "AND t.state IN (1, 2, 3, 4)"),
    ),
    _mutant(
        "q19", "the sweeper forgets the fences it deletes", Setup(PLAIN), _SET_BACK, "I6",
        ("FROM gone HAVING count(*) > 0", "FROM gone HAVING false"),
    ),
    _mutant(
        "q20", "rotation forgets the fences it deletes", Setup(RING), _SET_BACK, "I6",
        ("IF v_fence IS NOT NULL THEN", "IF false THEN"),
    ),
    _mutant(
        "q21", "the deleted fences are read before the insert", Setup(PLAIN), _SET_BACK, "I6",
        (f"{_LONE_LOCK}        INSERT INTO", f"{_LONE_LOCK}        {_FLOOR}\n        INSERT INTO"),
        (f"a sweeper may have let the insert wait.\n            {_FLOOR}\n", "\n"),
    ),
    _mutant(
        "q22", "a batch forgets what was deleted", Setup(PLAIN, in_batches=True), _SET_BACK, "I6",
        (f"                {_FLOOR}\n                IF v_floor", "                IF v_floor"),
    ),
    _mutant(
        "q23", "the portable claim takes the place of what is being deleted",
        Setup(PLAIN, "portable", guard=False), _SET_BACK, "I6",
        ("WHERE NOT EXISTS (SELECT FROM {schema}.records r WHERE r.id = u.id)", ""),
    ),
    _mutant(
        "q24", "the function of a lone finish without owner check", Setup(PLAIN),
        "takeover and the zombie's finish", "I2",
        ("WHERE t.id = p_id AND t.owner = p_owner AND t.fence = p_fence\n", "WHERE t.id = p_id\n"),
    ),
    _mutant(
        "q25", "the function of a lone finish without state check", Setup(PLAIN),
        "two endings", "I4",
        ("            AND (t.state = 1 OR (t.state = 4 AND p_state <> 4));\n", ";\n"),
    ),
)  # fmt: skip


def look_for(mutant: SQLMutant, url: str) -> RaceReport:
    """Run every schedule of its race."""
    database = Database(url, mutant.setup)
    try:
        race = next(race for race in RACES if race.name == mutant.where)
        return race_on_postgres(replace(race, lazy=True), database)
    finally:
        database.close()
