-- The statements that programs send, by name. Every parameter has a cast, from which its type is read
-- (see queries.py).

-- name: clock
SELECT coalesce($1::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint);

-- name: apply
SELECT f.at, f.ord, f.wrote,
    uuid_send((f.rec).id), (f.rec).state, (f.rec).fingerprint, uuid_send((f.rec).owner),
    (f.rec).fence, (f.rec).attempt, (f.rec).retry_safe, (f.rec).created_at, (f.rec).lease_until,
    (f.rec).finished_at, (f.rec).keep, (f.rec).audit, (f.rec).scope, (f.rec).operation,
    (f.rec).key, (f.rec).steps, (f.rec).body, CASE WHEN f.ord = 0 AND $23::boolean THEN {schema}.settings_2() ELSE (f.rec).note END,
    (f.rec).keep_unknown, (f.rec).revision
FROM (
    SELECT * FROM {schema}.claim_1(
        {schema}.in_time_1($1::bigint, $22::bigint, $24::text), $22::bigint, $2::integer, $3::boolean,
        $4::integer, $5::bigint,
        $6::uuid[], $7::uuid[], $8::bytea[], $9::bigint[], $10::bigint[], $11::bigint[],
        $12::boolean[], $13::text[], $14::text[], $15::text[], $16::bigint[])
    UNION ALL
    SELECT * FROM {schema}.finish_1(
        $1::bigint, $3::boolean, $17::uuid[], $18::uuid[], $19::bigint[], $20::smallint[],
        $21::bytea[])
) f;

-- name: claim
SELECT f.at, f.ord, f.wrote,
    uuid_send((f.rec).id), (f.rec).state, (f.rec).fingerprint, uuid_send((f.rec).owner),
    (f.rec).fence, (f.rec).attempt, (f.rec).retry_safe, (f.rec).created_at, (f.rec).lease_until,
    (f.rec).finished_at, (f.rec).keep, (f.rec).audit, (f.rec).scope, (f.rec).operation,
    (f.rec).key, (f.rec).steps, (f.rec).body, CASE WHEN f.ord = 0 AND $18::boolean THEN {schema}.settings_2() ELSE (f.rec).note END,
    (f.rec).keep_unknown, (f.rec).revision
FROM {schema}.claim_1(
    {schema}.in_time_1($1::bigint, $17::bigint, $19::text), $17::bigint, $2::integer, $3::boolean,
    $4::integer, $5::bigint,
    $6::uuid[], $7::uuid[], $8::bytea[], $9::bigint[], $10::bigint[], $11::bigint[],
    $12::boolean[], $13::text[], $14::text[], $15::text[], $16::bigint[]) f;

-- name: finish
SELECT f.at, f.ord, f.wrote,
    uuid_send((f.rec).id), (f.rec).state, (f.rec).fingerprint, uuid_send((f.rec).owner),
    (f.rec).fence, (f.rec).attempt, (f.rec).retry_safe, (f.rec).created_at, (f.rec).lease_until,
    (f.rec).finished_at, (f.rec).keep, (f.rec).audit, (f.rec).scope, (f.rec).operation,
    (f.rec).key, (f.rec).steps, (f.rec).body, (f.rec).note, (f.rec).keep_unknown, (f.rec).revision
FROM {schema}.finish_1(
    {schema}.in_time_1($1::bigint, NULL, $8::text), $2::boolean, $3::uuid[], $4::uuid[], $5::bigint[], $6::smallint[], $7::bytea[]) f;

-- name: claim_one_and_settings
SELECT {schema}.claim_one_1($1::bigint, $2::bigint, $3::text, false, $4::boolean,
    $5::uuid, $6::uuid, $7::bytea, $8::bigint, $9::bigint, $10::bigint, $11::boolean, $12::text,
    $13::text, $14::text, $15::bigint), {schema}.settings_2();

-- name: claim_one
SELECT {schema}.claim_one_1($1::bigint, $2::bigint, $3::text, false, $4::boolean,
    $5::uuid, $6::uuid, $7::bytea, $8::bigint, $9::bigint, $10::bigint, $11::boolean, $12::text,
    $13::text, $14::text, $15::bigint);

-- name: finish_one
SELECT {schema}.finish_one_1($1::bigint, $2::text, $3::boolean, $4::uuid, $5::uuid, $6::bigint,
    $7::smallint, $8::bytea);

-- name: insert_fresh
INSERT INTO {schema}.records AS t (
    id, owner, fence, created_at, lease_until, finished_at, keep, audit, sweep_at,
    attempt, revision, state, slot, retry_safe, fingerprint,
    scope, operation, key, steps, body, note, keep_unknown)
SELECT u.id, u.owner, greatest(c.n, c.floor + 1), c.n, c.n + u.lease, 0, u.keep, u.audit,
    c.n + u.lease + u.keep + u.audit, 1, 0, 1, 0, u.retry_safe, u.fingerprint,
    u.scope, u.operation, u.key, '', '', '', u.keep_unknown
FROM (
    SELECT coalesce($1::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS n,
        (SELECT m.until FROM {schema}.meta m WHERE m.name = 'deleted-fences') AS floor
) c, (
    -- A value that all claims share was sent once: unnest gives it to the first and null to the others.
    SELECT u.id, u.owner, u.fingerprint,
        coalesce(u.lease, (x.lease)[1]) AS lease, coalesce(u.keep, (x.keep)[1]) AS keep,
        coalesce(u.audit, (x.audit)[1]) AS audit,
        coalesce(u.retry_safe, (x.retry_safe)[1]) AS retry_safe,
        coalesce(u.scope, (x.scope)[1]) AS scope,
        coalesce(u.operation, (x.operation)[1]) AS operation, coalesce(u.key, (x.key)[1]) AS key,
        coalesce(u.keep_unknown, (x.keep_unknown)[1]) AS keep_unknown
    FROM (
        SELECT $2::uuid[] AS id, $3::uuid[] AS owner, $4::bytea[] AS fingerprint,
            $5::bigint[] AS lease, $6::bigint[] AS keep, $7::bigint[] AS audit,
            $8::boolean[] AS retry_safe, $9::text[] AS scope, $10::text[] AS operation,
            $11::text[] AS key, $12::bigint[] AS keep_unknown
    ) x, unnest(x.id, x.owner, x.fingerprint, x.lease, x.keep, x.audit, x.retry_safe, x.scope,
        x.operation, x.key, x.keep_unknown)
        AS u(id, owner, fingerprint, lease, keep, audit, retry_safe, scope, operation, key,
            keep_unknown)
) u
-- Not in place of a record that is just being deleted: the floor was read before that.
WHERE NOT EXISTS (SELECT FROM {schema}.records r WHERE r.id = u.id)
ON CONFLICT DO NOTHING
RETURNING uuid_send(t.id), t.fence;

-- What sweep_at_1 and expiry_1 do, without functions. So do all queries that a portable store runs.
-- name: finish_held
UPDATE {schema}.records AS t SET
    state = u.state, finished_at = c.n, body = u.body, revision = t.revision + 1,
    sweep_at = CASE
        WHEN u.state = 4 THEN c.n + t.keep_unknown + t.audit
        WHEN t.sweep_at BETWEEN c.n + t.keep + t.audit
            AND greatest(c.n, t.lease_until) + t.keep + t.audit THEN t.sweep_at
        ELSE c.n + t.keep + t.audit
    END
FROM (
    SELECT coalesce($1::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS n
) c, unnest($2::uuid[], $3::uuid[], $4::bigint[], $5::smallint[], $6::bytea[])
    AS u(id, owner, fence, state, body)
WHERE t.id = u.id AND t.owner = u.owner AND t.fence = u.fence
    AND (t.state = 1 OR (t.state = 4 AND u.state <> 4))
RETURNING uuid_send(t.id);

-- name: look
SELECT coalesce($1::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint), 0, false,
    uuid_send(t.id), t.state, t.fingerprint, uuid_send(t.owner), t.fence, t.attempt, t.retry_safe,
    t.created_at, t.lease_until, t.finished_at, t.keep, t.audit, t.scope, t.operation, t.key,
    t.steps, t.body, t.note, t.keep_unknown, t.revision,
    (SELECT m.until FROM {schema}.meta m WHERE m.name = 'deleted-fences')
FROM (SELECT 1) one LEFT JOIN {schema}.records t ON t.id = ANY ($2::uuid[]);

-- name: history
SELECT 0, 0, false,
    uuid_send(t.id), t.state, t.fingerprint, uuid_send(t.owner), t.fence, t.attempt, t.retry_safe,
    t.created_at, t.lease_until, t.finished_at, t.keep, t.audit, t.scope, t.operation, t.key,
    t.steps, t.body, t.note, t.keep_unknown, t.revision
FROM {schema}.history t WHERE t.id = ANY ($1::uuid[]) ORDER BY t.fence;

-- The records among the next $4 rows after the fence $2 that have not ended and not expired (has_ended
-- and is_expired of the state machine), by fence; also the last fence of those rows, and whether there
-- may be more. Only those rows are read, so the query is short whatever the table holds. Returns at most
-- $3 records, and those that share the last one's fence. Records whose steps have another release's
-- format are skipped, so that they do not hide the others. The index is of `fence + 0`.
-- name: unfinished
WITH c AS MATERIALIZED (
    SELECT coalesce($1::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS n
), seen AS MATERIALIZED (
    SELECT t.fence, t.id, t.slot,
        (t.state IN (1, 4) OR (t.state = 0 AND t.steps <> ''))
        AND c.n < CASE WHEN t.state = 4 OR (t.state = 1 AND NOT t.retry_safe)
                THEN t.keep_unknown ELSE t.keep END
            + CASE WHEN t.finished_at <> 0 THEN t.finished_at ELSE t.lease_until END
        AND substring(t.steps FROM 1 FOR 1) IN ('', '\x01')
            AS is_open
    FROM (
        SELECT r.* FROM {schema}.records r WHERE r.fence + 0 > $2::bigint
        ORDER BY r.fence + 0 FETCH FIRST ($4::bigint) ROWS WITH TIES
    ) t, c
), found AS MATERIALIZED (
    SELECT s.id, s.slot FROM seen s WHERE s.is_open
    ORDER BY s.fence FETCH FIRST ($3::bigint) ROWS WITH TIES
)
SELECT c.n, e.last, e.looks >= $4::bigint,
    uuid_send(t.id), t.state, t.fingerprint, uuid_send(t.owner), t.fence, t.attempt, t.retry_safe,
    t.created_at, t.lease_until, t.finished_at, t.keep, t.audit, t.scope, t.operation, t.key,
    t.steps, t.body, t.note, t.keep_unknown, t.revision
FROM c CROSS JOIN (SELECT max(s.fence) AS last, count(*) AS looks FROM seen s) e
LEFT JOIN (found f JOIN {schema}.records t ON t.id = f.id AND t.slot = f.slot) ON true
ORDER BY t.fence, t.id;

-- name: join
SELECT {schema}.join_3($1::bigint, $2::boolean, $3::uuid, $4::uuid, $5::text, $6::text,
    $7::integer, false);

-- name: join_and_settings
SELECT f.reply FROM (VALUES
    ({schema}.join_3($1::bigint, $2::boolean, $3::uuid, $4::uuid, $5::text, $6::text,
        $7::integer, false)),
    ({schema}.settings_2())) AS f(reply);

-- name: identify
SELECT identity, address, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
    {schema}.settings_2()
FROM {schema}.identify_1();

-- name: record
SELECT {schema}.record_1($1::bigint, $2::uuid, $3::bigint, $4::integer, $5::boolean, $6::boolean,
    $7::smallint, $8::smallint, $9::bytea, $10::uuid, $11::bigint, $12::integer, $13::boolean,
    $14::bigint, $15::bigint, $16::bigint, $17::bigint, $18::text, $19::text, $20::text,
    $21::bytea, $22::bytea, $23::text, $24::bigint);

-- Writes the outcome of an operation that this transaction runs and that had no record before, as
-- record_1 does with its p_old_fence null, without a function around it. Returns no row, and has done
-- nothing, if the claim is gone or the key was ended by another owner: record_1 then says which.
-- name: insert_record
INSERT INTO {schema}.records (
    id, owner, fence, created_at, lease_until, finished_at, keep, audit, sweep_at,
    attempt, revision, state, slot, retry_safe, fingerprint,
    scope, operation, key, steps, body, note, keep_unknown)
SELECT $2::uuid, $7::uuid, $8::bigint, $11::bigint, $12::bigint, c.n, $13::bigint, $14::bigint,
    c.n + CASE WHEN $5::smallint = 4 THEN $21::bigint ELSE $13::bigint END + $14::bigint,
    $9::integer, 0, $5::smallint, $4::smallint, $10::boolean, $6::bytea,
    $15::text, $16::text, $17::text, $18::bytea, $19::bytea, $20::text, $21::bigint
FROM (
    SELECT coalesce($1::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS n
) c
WHERE position($2::uuid::text || '/{seed} ' IN current_setting('oncekey.running', true)) > 0
ON CONFLICT DO NOTHING
RETURNING
    set_config('oncekey.running', replace(
        current_setting('oncekey.running', true), $2::uuid::text || '/{seed} ', ''), true),
    CASE WHEN $3::boolean THEN set_config('oncekey.open_savepoints', (1 + coalesce(nullif(
        current_setting('oncekey.open_savepoints', true), ''), '0')::integer)::text, true) END;

-- The key is no longer run in this transaction. Its advisory lock stays until the transaction ends.
-- name: unlock
SELECT set_config('oncekey.running',
    replace(current_setting('oncekey.running', true), $1::uuid::text || '/{seed} ', ''), true);

-- Inserts whole records and returns the ids of those that were inserted. A record whose finished_at is
-- -1 ends at the time of this statement.
-- name: insert_whole
INSERT INTO {schema}.records AS t (
    id, state, fingerprint, owner, fence, attempt, retry_safe, created_at, lease_until,
    finished_at, keep, audit, scope, operation, key, steps, body, note, keep_unknown, sweep_at,
    revision, slot)
SELECT u.id, u.state, u.fingerprint, u.owner, u.fence, u.attempt, u.retry_safe, u.created_at,
    u.lease_until, CASE u.finished_at WHEN -1 THEN c.n ELSE u.finished_at END, u.keep, u.audit,
    u.scope, u.operation, u.key, u.steps, u.body, u.note, u.keep_unknown,
    CASE u.finished_at WHEN -1
        THEN c.n + CASE u.state WHEN 4 THEN u.keep_unknown ELSE u.keep END + u.audit
        ELSE u.sweep_at END, 0, $22::smallint
FROM (
    SELECT coalesce($1::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS n
) c, unnest(
    $2::uuid[], $3::smallint[], $4::bytea[], $5::uuid[], $6::bigint[], $7::integer[],
    $8::boolean[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[],
    $14::text[], $15::text[], $16::text[], $17::bytea[], $18::bytea[], $19::text[], $20::bigint[],
    $21::bigint[]
) AS u(id, state, fingerprint, owner, fence, attempt, retry_safe, created_at, lease_until,
    finished_at, keep, audit, scope, operation, key, steps, body, note, keep_unknown, sweep_at)
ON CONFLICT DO NOTHING
RETURNING uuid_send(t.id);

-- The same in a ring, where no index makes a key unique across the slots: see absent_1.
-- name: insert_absent
INSERT INTO {schema}.records AS t (
    id, state, fingerprint, owner, fence, attempt, retry_safe, created_at, lease_until,
    finished_at, keep, audit, scope, operation, key, steps, body, note, keep_unknown, sweep_at,
    revision, slot)
SELECT u.id, u.state, u.fingerprint, u.owner, u.fence, u.attempt, u.retry_safe, u.created_at,
    u.lease_until, CASE u.finished_at WHEN -1 THEN c.n ELSE u.finished_at END, u.keep, u.audit,
    u.scope, u.operation, u.key, u.steps, u.body, u.note, u.keep_unknown,
    CASE u.finished_at WHEN -1
        THEN c.n + CASE u.state WHEN 4 THEN u.keep_unknown ELSE u.keep END + u.audit
        ELSE u.sweep_at END, 0, $22::smallint
FROM (
    SELECT coalesce($1::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS n
) c, unnest(
    $2::uuid[], $3::smallint[], $4::bytea[], $5::uuid[], $6::bigint[], $7::integer[],
    $8::boolean[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[],
    $14::text[], $15::text[], $16::text[], $17::bytea[], $18::bytea[], $19::text[], $20::bigint[],
    $21::bigint[]
) AS u(id, state, fingerprint, owner, fence, attempt, retry_safe, created_at, lease_until,
    finished_at, keep, audit, scope, operation, key, steps, body, note, keep_unknown, sweep_at)
WHERE u.id IN (SELECT f.id FROM {schema}.absent_1($2::uuid[]) AS f(id))
ON CONFLICT DO NOTHING
RETURNING uuid_send(t.id);

-- Past generations that another store has archived. sweep_at is when their audit ends.
-- name: insert_past
INSERT INTO {schema}.history (
    id, state, fingerprint, owner, fence, attempt, retry_safe, created_at, lease_until,
    finished_at, keep, audit, scope, operation, key, steps, body, note, keep_unknown, sweep_at,
    revision, slot)
SELECT u.*, 0, 0
FROM unnest(
    $1::uuid[], $2::smallint[], $3::bytea[], $4::uuid[], $5::bigint[], $6::integer[],
    $7::boolean[], $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[],
    $13::text[], $14::text[], $15::text[], $16::bytea[], $17::bytea[], $18::text[], $19::bigint[],
    $20::bigint[]
) AS u(id, state, fingerprint, owner, fence, attempt, retry_safe, created_at, lease_until,
    finished_at, keep, audit, scope, operation, key, steps, body, note, keep_unknown, sweep_at)
ON CONFLICT DO NOTHING;

-- Compare-and-set on (fence, revision). A row that another session is writing is skipped, and the
-- program reads it again. The record that is replaced goes to the history if `archive` is true.
-- name: replace
WITH u AS (
    SELECT r.*, c.n FROM (
        SELECT coalesce($1::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint)
            AS n
    ) c, unnest(
        $2::uuid[], $3::smallint[], $4::bytea[], $5::uuid[], $6::bigint[], $7::integer[],
        $8::boolean[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[],
        $14::text[], $15::text[], $16::text[], $17::bytea[], $18::bytea[], $19::text[],
        $20::bigint[], $21::bigint[], $22::bigint[], $23::integer[], $24::boolean[]
    ) AS r(id, state, fingerprint, owner, fence, attempt, retry_safe, created_at, lease_until,
        finished_at, keep, audit, scope, operation, key, steps, body, note, keep_unknown, sweep_at,
        old_fence, old_revision, archive)
), free AS (
    SELECT t.id FROM {schema}.records t WHERE t.id = ANY ($2::uuid[]) FOR UPDATE SKIP LOCKED
), done AS (
    UPDATE {schema}.records AS t SET
        state = u.state, fingerprint = u.fingerprint, owner = u.owner, fence = u.fence,
        attempt = u.attempt, retry_safe = u.retry_safe, created_at = u.created_at,
        lease_until = u.lease_until, keep = u.keep, audit = u.audit,
        finished_at = CASE u.finished_at WHEN -1 THEN u.n ELSE u.finished_at END,
        scope = u.scope, operation = u.operation, key = u.key, steps = u.steps, body = u.body,
        note = u.note, keep_unknown = u.keep_unknown, revision = t.revision + 1,
        sweep_at = CASE u.finished_at WHEN -1
            THEN u.n + CASE u.state WHEN 4 THEN u.keep_unknown ELSE u.keep END + u.audit
            ELSE u.sweep_at END
    FROM u, free
    WHERE t.id = u.id AND free.id = u.id
        AND t.fence = u.old_fence AND t.revision = u.old_revision
    RETURNING t.id
), old AS (
    INSERT INTO {schema}.history (
        id, owner, fence, created_at, lease_until, finished_at, keep, audit, sweep_at, attempt,
        revision, state, slot, retry_safe, fingerprint, scope, operation, key, steps, body, note,
        keep_unknown)
    SELECT t.id, t.owner, t.fence, t.created_at, t.lease_until, t.finished_at, t.keep, t.audit,
        CASE WHEN t.state = 4 OR (t.state = 1 AND NOT t.retry_safe)
            THEN t.keep_unknown ELSE t.keep END + t.audit
            + CASE WHEN t.finished_at <> 0 THEN t.finished_at ELSE t.lease_until END,
        t.attempt, t.revision, t.state, t.slot, t.retry_safe, t.fingerprint, t.scope, t.operation,
        t.key, t.steps, t.body, t.note, t.keep_unknown
    FROM {schema}.records t JOIN done ON done.id = t.id JOIN u ON u.id = t.id
    WHERE u.archive
    ON CONFLICT DO NOTHING
)
SELECT uuid_send(done.id) FROM done;

-- Waits until no session is writing these rows any more. If $2 is true, it does not wait for a row whose
-- key a caller's transaction holds: the end of that cannot be foreseen.
-- name: wait_for_writers
WITH free AS MATERIALIZED (
    SELECT u.id FROM unnest($1::uuid[]) u(id)
    WHERE set_config('lock_timeout', $3::text, true) IS NOT NULL AND (
        NOT $2::boolean OR pg_try_advisory_xact_lock_shared(uuid_hash_extended(u.id, {seed})))
), waited AS (
    SELECT t.id FROM {schema}.records t WHERE t.id IN (SELECT free.id FROM free)
    ORDER BY t.id FOR SHARE OF t
)
SELECT count(*) FROM waited;

-- name: locked
SELECT * FROM {schema}.locked_1($1::uuid[]);

-- name: select_meta
SELECT value FROM {schema}.meta WHERE name = $1::text;

-- name: insert_meta
INSERT INTO {schema}.meta (name, value) VALUES ($1::text, $2::bytea) ON CONFLICT DO NOTHING;

-- A commit that changes nothing. It waits for the synchronous standbys, which have then everything
-- that came before it in the log. Unlike the update of a row, it waits for no other transaction.
-- name: confirm
SELECT pg_logical_emit_message(true, 'oncekey', '') IS NOT NULL;

-- An election holds for its lease, and if the clock was set back, for one lease before it began (see
-- election_holds in stores/store_rules.py).
-- name: elect
INSERT INTO {schema}.meta AS m (name, value, since, until)
SELECT $2::text, $3::bytea, c.n, c.n + $4::bigint
FROM (
    SELECT coalesce($1::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS n
) c
ON CONFLICT (name) DO UPDATE
    SET value = excluded.value, since = excluded.since, until = excluded.until
    WHERE excluded.since >= m.until OR excluded.since <= 2 * m.since - m.until
        OR m.value = excluded.value
RETURNING 1;

-- Sweeps the records of a slot that are due: garbage is deleted, and undecided records are postponed, so
-- that they do not hide the records after them. Returns how many were deleted and how many postponed.
-- name: sweep_records
WITH c AS MATERIALIZED (
    SELECT coalesce($1::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS n
), due AS MATERIALIZED (
    SELECT t.id,
        CASE WHEN t.state = 4 OR (t.state = 1 AND NOT t.retry_safe)
            THEN t.keep_unknown ELSE t.keep END + t.audit
            + CASE WHEN t.finished_at <> 0 THEN t.finished_at ELSE t.lease_until END AS audit_until
    FROM {schema}.records t
    WHERE t.slot = $3::smallint AND t.sweep_at <= (SELECT c.n FROM c)
    ORDER BY t.sweep_at LIMIT $2::bigint FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM {schema}.records t USING due, c
    WHERE t.id = due.id AND t.slot = $3::smallint AND due.audit_until <= c.n
    RETURNING t.fence
), floor AS (
    INSERT INTO {schema}.meta AS m (name, value, until)
    SELECT 'deleted-fences', '', max(gone.fence) FROM gone HAVING count(*) > 0
    ON CONFLICT (name) DO UPDATE SET until = excluded.until WHERE m.until < excluded.until
), postponed AS (
    UPDATE {schema}.records t SET sweep_at = due.audit_until FROM due, c
    WHERE t.id = due.id AND t.slot = $3::smallint AND due.audit_until > c.n
    RETURNING 1
)
SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM postponed);

-- name: sweep_history
WITH gone AS (
    DELETE FROM {schema}.history WHERE ctid = ANY (ARRAY(
        SELECT t.ctid FROM {schema}.history t
        WHERE t.sweep_at <= coalesce($1::bigint,
            (extract(epoch FROM statement_timestamp()) * 1000000)::bigint)
        ORDER BY t.sweep_at LIMIT $2::bigint FOR UPDATE SKIP LOCKED))
    RETURNING 1
)
SELECT count(*) FROM gone;

-- name: rotate
SELECT * FROM {schema}.rotate_1($1::bigint, $2::integer, $3::bigint, $4::bigint);

-- What is read before oncekey's tables and functions are there: see settings_2.
-- name: server
SELECT current_setting('server_version_num')::integer,
    current_setting('fsync'), current_setting('full_page_writes'),
    pg_is_in_recovery(), current_setting('synchronous_standby_names'),
    (SELECT coalesce(json_agg(json_build_array(
            a.application_name, host(a.client_addr), s.slot_name)), '[]')::text
        FROM pg_catalog.pg_stat_replication r
        JOIN pg_catalog.pg_stat_activity a ON a.pid = r.pid
        LEFT JOIN pg_catalog.pg_replication_slots s ON s.active_pid = r.pid
        WHERE s.slot_type = 'physical' OR (s.slot_type IS NULL AND a.datid IS NULL)),
    (SELECT coalesce(json_agg(s.slot_name), '[]')::text FROM pg_catalog.pg_replication_slots s
        WHERE s.slot_type = 'physical' AND NOT s.temporary AND NOT s.active);

-- name: settings
SELECT {schema}.settings_2();

-- Standbys that are seen, each with the time of this sighting.
-- name: remember_replicas
INSERT INTO {schema}.meta AS m (name, value, since, until)
SELECT 'replica ' || u.name, u.value, c.n, c.n
FROM unnest($1::text[], $2::bytea[]) AS u(name, value)
CROSS JOIN (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS n) c
ORDER BY u.name
ON CONFLICT (name) DO UPDATE SET value = excluded.value, until = excluded.until;

-- An operator says that a standby is gone: only if nobody has seen it since it was shown.
-- name: forget_replica
WITH gone AS (
    DELETE FROM {schema}.meta WHERE name = 'replica ' || $1::text AND until = $2::bigint
    RETURNING name
)
INSERT INTO {schema}.meta AS m (name, value)
SELECT 'forgotten ' || $1::text, $3::bytea FROM gone
ON CONFLICT (name) DO UPDATE SET value = excluded.value
RETURNING name;

-- name: migrations
SELECT version, name, compatible FROM {schema}.migrations ORDER BY version;

-- name: has_migrations
SELECT to_regclass($1::text) IS NOT NULL, to_regnamespace($2::text) IS NOT NULL;

-- The records among the next $4 ones by claim that match (Query.matches), at most $5, as a row each; the
-- last record that was looked at, how many there were, and the record's own place among them. Without a match there is one row, whose id is
-- null. Steps are left out, and bodies are cut. The index is of `fence + 0`.
-- name: search
WITH c AS MATERIALIZED (
    SELECT coalesce($1::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS n
), walked AS MATERIALIZED (
    SELECT r.fence, r.id, r.slot, row_number() OVER (ORDER BY r.fence + 0 DESC, r.id DESC) AS place, (
            CASE WHEN c.n >= CASE WHEN r.state = 4 OR (r.state = 1 AND NOT r.retry_safe)
                    THEN r.keep_unknown ELSE r.keep END
                    + CASE WHEN r.finished_at <> 0 THEN r.finished_at ELSE r.lease_until END
                THEN CASE WHEN $7::boolean THEN r.state ELSE -1 END
                WHEN r.state = 1 AND NOT r.retry_safe AND c.n >= r.lease_until THEN 4
                ELSE r.state
            END
        ) = ANY ($6::smallint[])
            AND (r.state <> 0 OR r.steps <> '')
            AND ($8::text IS NULL OR r.scope = $8::text)
            AND ($9::text IS NULL OR split_part(r.operation, chr(9), 1) = $9::text)
            AND ($10::text IS NULL OR starts_with(split_part(r.operation, chr(9), 3), $10::text))
            AND ($11::text IS NULL OR r.key = $11::text) AS matches
    FROM (
        SELECT t.* FROM {schema}.records t
        WHERE t.fence + 0 <= $2::bigint AND (t.fence < $2::bigint OR t.id < $3::uuid)
        ORDER BY t.fence + 0 DESC, t.id DESC LIMIT $4::bigint
    ) r, c
), last AS (
    SELECT (SELECT count(*) FROM walked) AS looked_at, w.fence, w.id
    FROM (SELECT 1) one LEFT JOIN LATERAL (
        SELECT walked.fence, walked.id FROM walked ORDER BY walked.fence, walked.id LIMIT 1
    ) w ON true
), found AS MATERIALIZED (
    SELECT w.id, w.slot, w.place FROM walked w WHERE w.matches
    ORDER BY w.fence DESC, w.id DESC LIMIT $5::bigint + 1
)
SELECT c.n, l.looked_at, l.fence,
    uuid_send(t.id), t.state, t.fingerprint, uuid_send(t.owner), t.fence, t.attempt, t.retry_safe,
    t.created_at, t.lease_until, t.finished_at, t.keep, t.audit, t.scope, t.operation, t.key,
    ''::bytea, substring(t.body FROM 1 FOR $12::integer), t.note, t.keep_unknown, t.revision,
    uuid_send(l.id), f.place
FROM c CROSS JOIN last l
LEFT JOIN (found f JOIN {schema}.records t ON t.id = f.id AND t.slot = f.slot) ON true
ORDER BY t.fence DESC, t.id DESC;

-- The records whose ids are in a range, whatever else they are.
-- name: search_ids
SELECT coalesce($1::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint), 0, false,
    uuid_send(t.id), t.state, t.fingerprint, uuid_send(t.owner), t.fence, t.attempt, t.retry_safe,
    t.created_at, t.lease_until, t.finished_at, t.keep, t.audit, t.scope, t.operation, t.key,
    t.steps, substring(t.body FROM 1 FOR $5::integer), t.note, t.keep_unknown, t.revision
FROM (SELECT 1) one LEFT JOIN (
    SELECT r.* FROM {schema}.records r WHERE r.id BETWEEN $2::uuid AND $3::uuid
    ORDER BY r.id LIMIT $4::bigint
) t ON true;

-- Rows are what the last VACUUM or ANALYZE has estimated; -1 means that there was none yet.
-- name: measure
-- Few records are counted. Of many the server has an estimate, made when it was last analyzed: how many
-- a page had. A table that is not partitioned is not in its own tree.
SELECT c.n, CASE WHEN few.rows < $2::bigint THEN few.rows ELSE greatest(few.rows, s.rows) END, s.bytes,
    due.records, due.oldest,
    (SELECT count(*) FROM (
        SELECT 1 FROM {schema}.records t WHERE t.fence + 0 > c.n - $3::bigint LIMIT $2::bigint) new),
    (SELECT count(*) FROM pg_locks l WHERE NOT l.granted
        AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))
FROM (
    SELECT coalesce($1::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS n
) c, (
    SELECT count(*) AS rows FROM (SELECT 1 FROM {schema}.records t LIMIT $2::bigint) t
) few, (
    SELECT coalesce(sum(greatest(k.reltuples, 0) / greatest(k.relpages, 1)
            * (pg_relation_size(k.oid) / current_setting('block_size')::integer))
            FILTER (WHERE k.relkind = 'r'), 0)::bigint AS rows,
        coalesce(sum(pg_total_relation_size(k.oid)), 0)::bigint AS bytes
    FROM pg_class k
    WHERE k.oid = '{schema_text}.records'::regclass
        OR k.oid IN (SELECT p.relid FROM pg_partition_tree('{schema_text}.records') p)
) s, LATERAL (
    -- An undecided record stays, though a sweeper has yet to postpone it.
    SELECT count(*) AS records, coalesce(min(t.sweep_at), 0) AS oldest
    FROM (
        SELECT t.sweep_at, {schema}.expiry_1(t) + t.audit AS audit_until FROM {schema}.records t
        WHERE t.sweep_at <= c.n ORDER BY t.sweep_at LIMIT $2::bigint
    ) t
    WHERE t.audit_until <= c.n
) due;
