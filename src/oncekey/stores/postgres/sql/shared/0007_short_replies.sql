-- Functions for one key at a time, whose reply is one text.
-- compatible: 3
--
-- A query that has one column and scans no function's rows takes the server half the time of one that
-- returns a record by its columns. In a batch that is little; for a lone claim, a lone finish and a
-- claim in a caller's transaction it is most of their work. So these return the usual reply as a short
-- text, and a record, where there is one to return, as JSON. join_1 stays for the release before this.

-- A record as a JSON array of its columns, with bytes as hexadecimal digits: they must not depend on
-- the session's bytea_output. See rows.py.
CREATE FUNCTION {schema}.columns_1(t {schema}.records) RETURNS json LANGUAGE sql STABLE AS $columns$
    SELECT CASE WHEN t.id IS NOT NULL THEN json_build_array(
        encode(uuid_send(t.id), 'hex'), t.state, encode(t.fingerprint, 'hex'),
        encode(uuid_send(t.owner), 'hex'), t.fence, t.attempt, t.retry_safe, t.created_at,
        t.lease_until, t.finished_at, t.keep, t.audit, t.scope, t.operation, t.key,
        encode(t.steps, 'hex'), encode(t.body, 'hex'), t.note, t.keep_unknown, t.revision) END
$columns$;

-- One claim on a plain table, by p_how 0 of claim_1. Returns a JSON array: the clock reading; the
-- server's settings, if p_settings is true; and if the claim has not inserted a new record with that
-- reading as its fence, `at`, `wrote` and the record as claim_1 returns them.
--
-- It does what claim_1 does for a lone claim. Whatever goes another way is left to claim_1.
CREATE FUNCTION {schema}.claim_one_1(
    p_now bigint, p_not_after bigint, p_lock_timeout text, p_settings boolean, p_guard boolean,
    p_id uuid, p_owner uuid, p_fingerprint bytea, p_lease bigint, p_keep bigint, p_audit bigint,
    p_retry_safe boolean, p_scope text, p_operation text, p_key text, p_keep_unknown bigint
) RETURNS text LANGUAGE plpgsql VOLATILE AS $claim$
DECLARE
    v_clock CONSTANT bigint := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    n CONSTANT bigint := coalesce(p_now, v_clock);
    v_settings text := 'null';  -- as JSON
    v_floor bigint;
BEGIN
    IF p_not_after < v_clock THEN  -- as in in_time_1
        RAISE EXCEPTION 'oncekey: too late, nobody waits for this claim' USING ERRCODE = 'OK005';
    END IF;
    PERFORM set_config('lock_timeout', p_lock_timeout, true);
    IF p_settings THEN
        v_settings := to_json({schema}.settings_1());
    END IF;
    IF NOT p_guard OR pg_try_advisory_xact_lock_shared(uuid_hash_extended(p_id, {seed})) THEN
        INSERT INTO {schema}.records (
            id, owner, fence, created_at, lease_until, finished_at, keep, audit, sweep_at,
            attempt, revision, state, slot, retry_safe, fingerprint,
            scope, operation, key, steps, body, note, keep_unknown)
        VALUES (p_id, p_owner, n, n, n + p_lease, 0, p_keep, p_audit,
            n + p_lease + p_keep + p_audit, 1, 0, 1, 0, p_retry_safe, p_fingerprint,
            p_scope, p_operation, p_key, '', '', '', p_keep_unknown)
        ON CONFLICT DO NOTHING;
        IF FOUND THEN
            -- In a statement of its own: the insert may have waited for a sweeper.
            SELECT m.until INTO v_floor FROM {schema}.meta m WHERE m.name = 'deleted-fences';
            IF v_floor >= n THEN
                UPDATE {schema}.records t SET fence = v_floor + 1 WHERE t.id = p_id;
                RETURN (SELECT json_build_array(n, v_settings::json, n, true, {schema}.columns_1(t))
                    FROM {schema}.records t WHERE t.id = p_id);
            END IF;
            RETURN format('[%s, %s]', n, v_settings);
        END IF;
    END IF;
    -- The insert may have waited, so claim_1 reads the clock again.
    RETURN (SELECT json_build_array(n, v_settings::json, f.at, f.wrote, {schema}.columns_1(f.rec))
        FROM {schema}.claim_1(p_now, p_not_after, 0, p_guard, 1, 0, ARRAY[p_id], ARRAY[p_owner],
            ARRAY[p_fingerprint], ARRAY[p_lease], ARRAY[p_keep], ARRAY[p_audit],
            ARRAY[p_retry_safe], ARRAY[p_scope], ARRAY[p_operation], ARRAY[p_key],
            ARRAY[p_keep_unknown]) f
        WHERE f.ord = 1);
END
$claim$;

-- One finish. Returns null if it has ended its record; otherwise a JSON array of `at`, `wrote` and the
-- record as finish_1 returns them, to which everything but the usual way is left.
CREATE FUNCTION {schema}.finish_one_1(
    p_now bigint, p_lock_timeout text, p_guard boolean,
    p_id uuid, p_owner uuid, p_fence bigint, p_state smallint, p_body bytea
) RETURNS text LANGUAGE plpgsql VOLATILE AS $finish$
DECLARE
    n CONSTANT bigint := coalesce(p_now, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
BEGIN
    PERFORM set_config('lock_timeout', p_lock_timeout, true);
    IF NOT p_guard OR pg_try_advisory_xact_lock_shared(uuid_hash_extended(p_id, {seed})) THEN
        UPDATE {schema}.records AS t SET
            state = p_state, finished_at = n, body = p_body, revision = t.revision + 1,
            sweep_at = {schema}.sweep_at_1(t, p_state, n)
        WHERE t.id = p_id AND t.owner = p_owner AND t.fence = p_fence
            AND (t.state = 1 OR (t.state = 4 AND p_state <> 4));
        IF FOUND THEN
            RETURN NULL;
        END IF;
    END IF;
    RETURN (SELECT json_build_array(f.at, f.wrote, {schema}.columns_1(f.rec))
        FROM {schema}.finish_1(p_now, p_guard, ARRAY[p_id], ARRAY[p_owner], ARRAY[p_fence],
            ARRAY[p_state], ARRAY[p_body]) f);
END
$finish$;

-- What join_1 does, with another reply: joins a caller's transaction, reads a record, and
-- locks its key if the transaction may write it.
-- Returns a JSON array (see rows.py):
--   at                the clock reading; null if the connection leads to another store than p_store
--   open_savepoints   how many savepoints finished runs have left in this transaction
--   locked            null    another transaction holds the key
--                     true    this transaction now holds it
--                     false   no lock is needed: the record gives the reply, a replay or a rejection
--   record            null if there is none; otherwise its columns, with bytes as hexadecimal digits
--   floor             the highest fence of a deleted record; read if there is no record
--   settings          of the server, if p_settings is true
--   address           where the connection leads to, if that is another store
--
-- p_how    0 to run the operation   1 only to look   2 to decide an unknown key
--
-- A transaction may take a lock again that it already has, so the keys it is running are listed in a
-- setting of its own. The setting ends with the transaction and is rolled back with its savepoints, as
-- the lock is.
CREATE FUNCTION {schema}.join_2(
    p_now bigint, p_ring boolean, p_id uuid, p_owner uuid, p_fingerprint bytea, p_store bytea,
    p_how integer, p_settings boolean
) RETURNS text LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $join$
DECLARE
    n CONSTANT bigint := coalesce(p_now, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
    v_name CONSTANT text := p_id::text || '/{seed} ';
    v_running CONSTANT text := coalesce(current_setting('oncekey.running', true), '');
    v_open CONSTANT text := coalesce(nullif(current_setting('oncekey.open_savepoints', true), ''), '0');
    v_settings text := 'null';  -- as JSON
    v_writes boolean := p_how = 0;
    v_floor bigint;
    t {schema}.records;
BEGIN
    IF (SELECT m.value FROM {schema}.meta m WHERE m.name = 'identity') IS DISTINCT FROM p_store THEN
        RETURN json_build_array(NULL, 0, NULL, NULL, 0, NULL, {schema}.address_1());
    END IF;
    IF p_settings THEN
        v_settings := to_json({schema}.settings_1());
    END IF;
    IF p_ring AND p_how <> 1 AND current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'oncekey: the ring needs transactions at READ COMMITTED'
            USING ERRCODE = 'OK001';
    END IF;
    SELECT o.* INTO t FROM {schema}.records o WHERE o.id = p_id;
    IF FOUND THEN
        v_writes := CASE p_how
            WHEN 0 THEN {schema}.claim_rule_1(t, p_owner, p_fingerprint, true, n) > 0
            WHEN 2 THEN t.state IN (1, 4)
            ELSE false
        END;
    END IF;
    IF v_writes THEN
        IF strpos(v_running, v_name) > 0
            OR NOT pg_try_advisory_xact_lock(uuid_hash_extended(p_id, {seed}))
        THEN
            RETURN format('[%s, %s, null, null, 0, %s, null]', n, v_open, v_settings);
        END IF;
        IF p_how = 0 THEN
            PERFORM set_config('oncekey.running', v_running || v_name, true);
        END IF;
        IF current_setting('synchronous_commit') IN ('off', 'local') THEN
            PERFORM set_config('synchronous_commit', 'on', true);
        END IF;
        -- Look again, in a statement of its own: its snapshot must be taken after the lock.
        SELECT o.* INTO t FROM {schema}.records o WHERE o.id = p_id;
    END IF;
    IF t.id IS NULL THEN
        SELECT m.until INTO v_floor FROM {schema}.meta m WHERE m.name = 'deleted-fences';
        RETURN format('[%s, %s, %s, null, %s, %s, null]',
            n, v_open, CASE WHEN v_writes THEN 'true' ELSE 'false' END, coalesce(v_floor, 0), v_settings);
    END IF;
    RETURN json_build_array(
        n, v_open::integer, v_writes, {schema}.columns_1(t), 0, v_settings::json, NULL);
END
$join$;
