-- Claims and finishes as functions: a batch of them is one round trip and one commit.
--
-- The functions do what core/state_machine.py decides for the records they find, and return those
-- records, so that the state machine produces the reply. A test runs both with the same random
-- commands. A later release adds claim_2 beside claim_1 and drops claim_1 one release after that.
--
-- A session plans each statement once and caches the plan. A plan made while the table was small would
-- go on reading the whole table, so every method except index lookups is switched off: in our own
-- sessions by their settings, and in join_1, which runs in callers' sessions, by the function's own.
--
-- There are two advisory locks per key, both held until the transaction ends.
-- The first one ({seed}) is tried and never waited for:
--   exclusive   by a caller's transaction that runs an operation
--   shared      by everybody else, to find out whether such a transaction is active
-- The second one ({seed} + 1) is taken by claims only, if the index does not make keys unique (the
-- ring) or if the store is set to lock. Claims wait for it, because another claim holds it briefly.

-- When a record expires and its key is fresh again. An undecided record (unknown, or a claim that
-- becomes unknown if its owner dies) stays for keep_unknown, every other one for keep.
CREATE FUNCTION {schema}.expiry_1(t {schema}.records) RETURNS bigint LANGUAGE sql IMMUTABLE AS $expiry$
    SELECT CASE WHEN t.state = 4 OR (t.state = 1 AND NOT t.retry_safe)
            THEN t.keep_unknown ELSE t.keep END
        + CASE WHEN t.finished_at <> 0 THEN t.finished_at ELSE t.lease_until END
$expiry$;

-- The rule of the state machine that applies to a claim; 0 if the claim writes nothing.
CREATE FUNCTION {schema}.claim_rule_1(
    t {schema}.records, p_owner uuid, p_fingerprint bytea, p_retry_safe boolean, n bigint
) RETURNS integer LANGUAGE sql IMMUTABLE AS $rule$
    SELECT CASE
        WHEN n >= {schema}.expiry_1(t) THEN 1  -- expired: a new generation
        WHEN t.state = 0 AND t.owner = p_owner THEN 0  -- a late claim of the owner that freed it
        WHEN t.state = 0 AND (t.steps = '' OR t.fingerprint = p_fingerprint) THEN 2  -- freed
        WHEN t.state = 1 AND t.owner = p_owner THEN 3  -- the same claim again: its reply was lost
        WHEN t.fingerprint <> p_fingerprint OR t.state <> 1 OR n < t.lease_until THEN 0
        WHEN t.retry_safe AND p_retry_safe THEN 4  -- take over
        ELSE 5  -- the dead owner's key becomes unknown
    END
$rule$;

-- Rewrite one record according to the rule, unless the record has changed since it was read.
CREATE FUNCTION {schema}.rewrite_1(
    t {schema}.records, p_rule integer, n bigint,
    p_owner uuid, p_fingerprint bytea, p_lease bigint, p_keep bigint, p_audit bigint,
    p_retry_safe boolean, p_scope text, p_operation text, p_key text, p_keep_unknown bigint
) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $rewrite$
DECLARE
    v_expiry CONSTANT bigint := {schema}.expiry_1(t);
    r {schema}.records := t;
BEGIN
    r.revision := t.revision + 1;
    IF p_rule = 5 THEN
        r.state := 4;
        r.finished_at := n;
        r.sweep_at := n + t.keep_unknown + t.audit;
    ELSE
        r.state := 1;
        r.finished_at := 0;
        r.owner := p_owner;
        r.lease_until := n + p_lease;
        IF p_rule <> 3 THEN
            r.fence := greatest(t.fence + 1, n);
            r.attempt := CASE p_rule WHEN 1 THEN 1 ELSE t.attempt + 1 END;
            r.retry_safe := p_retry_safe;
            r.keep := p_keep;
            r.audit := p_audit;
            r.keep_unknown := p_keep_unknown;
        END IF;
        r.sweep_at := r.lease_until + r.keep + r.audit;
        IF p_rule <= 2 THEN
            r.fingerprint := p_fingerprint;
            r.scope := p_scope;
            r.operation := p_operation;
            r.key := p_key;
            r.body := '';
            r.note := '';
        END IF;
        IF p_rule = 1 THEN
            r.created_at := n;
            r.steps := '';
        END IF;
    END IF;
    UPDATE {schema}.records AS o SET
        owner = r.owner, fence = r.fence, created_at = r.created_at, lease_until = r.lease_until,
        finished_at = r.finished_at, keep = r.keep, audit = r.audit,
        keep_unknown = r.keep_unknown, sweep_at = r.sweep_at,
        attempt = r.attempt, revision = r.revision, state = r.state, retry_safe = r.retry_safe,
        fingerprint = r.fingerprint, scope = r.scope, operation = r.operation, key = r.key,
        steps = r.steps, body = r.body, note = r.note
    WHERE o.id = t.id AND o.fence = t.fence AND o.revision = t.revision;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF p_rule = 1 AND t.state <> 0 AND n < v_expiry + t.audit THEN
        t.sweep_at := v_expiry + t.audit;
        INSERT INTO {schema}.history SELECT t.* ON CONFLICT DO NOTHING;
    END IF;
    RETURN true;
END
$rewrite$;

-- Raises OK005 if it is later than p_not_after: the sender has stopped waiting and reported that
-- nothing ran. Also sets the lock timeout for the rest of the transaction. Returns p_now, so that a
-- query can use the call in place of p_now, which makes it run before everything else.
CREATE FUNCTION {schema}.in_time_1(p_now bigint, p_not_after bigint, p_lock_timeout text)
RETURNS bigint LANGUAGE plpgsql VOLATILE AS $in_time$
BEGIN
    IF p_not_after < (extract(epoch FROM clock_timestamp()) * 1000000)::bigint THEN
        RAISE EXCEPTION 'oncekey: too late, nobody waits for this claim' USING ERRCODE = 'OK005';
    END IF;
    PERFORM set_config('lock_timeout', p_lock_timeout, true);
    RETURN p_now;
END
$in_time$;

-- The clock, read again after a wait. Raises OK005 like in_time_1 if nobody waits for the claim.
CREATE FUNCTION {schema}.clock_1(p_now bigint, p_not_after bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $clock$
DECLARE
    n CONSTANT bigint := coalesce(p_now, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
BEGIN
    IF p_not_after < n THEN
        RAISE EXCEPTION 'oncekey: too late, nobody waits for this claim' USING ERRCODE = 'OK005';
    END IF;
    RETURN n;
END
$clock$;

-- The ids of those rows that another session holds locked. It is a function so that the session's
-- lock_timeout applies to the lock on the table.
CREATE FUNCTION {schema}.locked_1(p_id uuid[]) RETURNS SETOF bytea
LANGUAGE plpgsql VOLATILE AS $locked$
DECLARE
    v_free uuid[];
BEGIN
    SELECT array_agg(f.id) INTO v_free FROM (
        SELECT t.id FROM {schema}.records t WHERE t.id = ANY (p_id) FOR UPDATE SKIP LOCKED
    ) f;
    RETURN QUERY SELECT uuid_send(t.id) FROM {schema}.records t
    WHERE t.id = ANY (p_id) AND (v_free IS NULL OR t.id <> ALL (v_free));
END
$locked$;

-- A batch of claims, of distinct ids in order. The row with ord 0 has a clock reading: a claim without
-- a row of its own has inserted a new record with that reading as its fence. Every other claim has a
-- row with the record it found and `wrote`:
--   true    the claim has rewritten that record
--   false   the claim wrote nothing
--   null    an open transaction holds the key
-- `at` is the clock reading of the decision. A new record with another fence is returned like one that
-- the claim found as its own.
--
-- The clock is read again after every wait: for the lock of claims, and for a writer of the same key.
-- The fence of a new record must be above the floor, the highest fence of a deleted record. The floor
-- is read after the insert, in a statement of its own, because the insert may have waited for a sweeper
-- that has just deleted the key's last record.
--
-- p_how    0 insert first, then compare-and-set
--          1 read first, and lock the row to be rewritten
--          2 read first, take the key's lock for claims, read again
-- p_guard  true to respect callers' transactions
-- p_slots  more than 1: the ring, on which only the lock makes a key unique
CREATE FUNCTION {schema}.claim_1(
    p_now bigint, p_not_after bigint, p_how integer, p_guard boolean, p_slots integer, p_period bigint,
    p_id uuid[], p_owner uuid[], p_fingerprint bytea[], p_lease bigint[], p_keep bigint[],
    p_audit bigint[], p_retry_safe boolean[], p_scope text[], p_operation text[], p_key text[],
    p_keep_unknown bigint[]
) RETURNS TABLE (at bigint, ord integer, wrote boolean, rec {schema}.records)
LANGUAGE plpgsql VOLATILE AS $claim$
DECLARE
    n bigint := coalesce(p_now, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
    v_reported bigint := n;  -- the reading in the row with ord 0
    v_waited boolean := false;  -- since n was read
    v_floor bigint;
    v_open integer[];     -- claims without a reply; null: all
    v_allowed integer[];  -- claims that may write; null: all
    v_seen integer[];     -- claims whose record the last read found
    v_left integer := cardinality(p_id);
    v_fresh uuid[];
    v_replied integer[];
    v_rule integer;
    r record;
BEGIN
    at := n;
    IF p_how < 2 AND p_slots = 1 THEN
        ord := 0;
        RETURN NEXT;
    END IF;

    IF v_left > 1 THEN
        -- A value that all claims share was sent once.
        IF cardinality(p_lease) = 1 THEN
            p_lease := array_fill(p_lease[1], ARRAY[v_left]);
        END IF;
        IF cardinality(p_keep) = 1 THEN
            p_keep := array_fill(p_keep[1], ARRAY[v_left]);
        END IF;
        IF cardinality(p_audit) = 1 THEN
            p_audit := array_fill(p_audit[1], ARRAY[v_left]);
        END IF;
        IF cardinality(p_retry_safe) = 1 THEN
            p_retry_safe := array_fill(p_retry_safe[1], ARRAY[v_left]);
        END IF;
        IF cardinality(p_scope) = 1 THEN
            p_scope := array_fill(p_scope[1], ARRAY[v_left]);
        END IF;
        IF cardinality(p_operation) = 1 THEN
            p_operation := array_fill(p_operation[1], ARRAY[v_left]);
        END IF;
        IF cardinality(p_key) = 1 THEN
            p_key := array_fill(p_key[1], ARRAY[v_left]);
        END IF;
        IF cardinality(p_keep_unknown) = 1 THEN
            p_keep_unknown := array_fill(p_keep_unknown[1], ARRAY[v_left]);
        END IF;
    ELSIF v_left = 0 THEN
        RETURN;
    ELSIF p_how = 0 AND p_slots = 1 AND (NOT p_guard
        OR pg_try_advisory_xact_lock_shared(uuid_hash_extended(p_id[1], {seed})))
    THEN
        -- A lone claim needs no arrays, which saves a third of its time.
        INSERT INTO {schema}.records (
            id, owner, fence, created_at, lease_until, finished_at, keep, audit, sweep_at,
            attempt, revision, state, slot, retry_safe, fingerprint,
            scope, operation, key, steps, body, note, keep_unknown)
        VALUES (p_id[1], p_owner[1], n, n, n + p_lease[1], 0, p_keep[1], p_audit[1],
            n + p_lease[1] + p_keep[1] + p_audit[1], 1, 0, 1, 0, p_retry_safe[1],
            p_fingerprint[1], p_scope[1], p_operation[1], p_key[1], '', '', '', p_keep_unknown[1])
        ON CONFLICT DO NOTHING;
        IF FOUND THEN
            SELECT m.until INTO v_floor FROM {schema}.meta m WHERE m.name = 'deleted-fences';
            IF v_floor >= n THEN
                UPDATE {schema}.records t SET fence = v_floor + 1 WHERE t.id = p_id[1]
                RETURNING t.* INTO rec;
                ord := 1;
                wrote := true;
                RETURN NEXT;
            END IF;
            RETURN;
        END IF;
        v_waited := true;
    END IF;

    IF p_how = 2 OR p_slots > 1 THEN
        -- Replays and rejections need no lock.
        v_replied := '{}';
        FOR r IN
            SELECT u.ord::integer AS ord, t AS rec
            FROM unnest(p_id, p_owner, p_fingerprint, p_retry_safe) WITH ORDINALITY
                AS u(id, owner, fingerprint, retry_safe, ord)
            JOIN {schema}.records t ON t.id = u.id
            WHERE {schema}.claim_rule_1(t, u.owner, u.fingerprint, u.retry_safe, n) = 0
        LOOP
            ord := r.ord;
            wrote := false;
            rec := r.rec;
            RETURN NEXT;
            v_replied := v_replied || ord;
            v_left := v_left - 1;
        END LOOP;
        rec := NULL;
        wrote := NULL;
        ord := 0;
        IF v_left = 0 THEN
            RETURN NEXT;
            RETURN;
        END IF;
        SELECT array_agg(i) INTO v_open FROM generate_subscripts(p_id, 1) i
        WHERE i <> ALL (v_replied);
        SELECT coalesce(array_agg(i), '{}') INTO v_allowed FROM unnest(v_open) i
        WHERE NOT p_guard OR pg_try_advisory_xact_lock_shared(uuid_hash_extended(p_id[i], {seed}));
        -- The lock is a statement of its own: the snapshot of the next read must be taken after it.
        PERFORM pg_advisory_xact_lock(uuid_hash_extended(p_id[i], {seed} + 1))
        FROM unnest(v_allowed) i;
        n := {schema}.clock_1(p_now, p_not_after);
        v_reported := n;
        at := n;
        RETURN NEXT;
    ELSIF p_guard THEN
        SELECT array_agg(u.ord) INTO v_allowed FROM unnest(p_id) WITH ORDINALITY AS u(id, ord)
        WHERE NOT pg_try_advisory_xact_lock_shared(uuid_hash_extended(u.id, {seed}));
        IF v_allowed IS NOT NULL THEN  -- these are held: keep the others
            SELECT coalesce(array_agg(i), '{}') INTO v_allowed FROM generate_subscripts(p_id, 1) i
            WHERE i <> ALL (v_allowed);
        END IF;
    END IF;

    FOR v_try IN 1 .. 20 LOOP
        IF v_try > 1 OR (p_how = 0 AND p_slots = 1) THEN
            IF v_waited THEN
                n := {schema}.clock_1(p_now, p_not_after);
                v_waited := false;
            END IF;
            WITH fresh AS (
                INSERT INTO {schema}.records AS t (
                    id, owner, fence, created_at, lease_until, finished_at, keep, audit, sweep_at,
                    attempt, revision, state, slot, retry_safe, fingerprint,
                    scope, operation, key, steps, body, note, keep_unknown)
                SELECT u.id, u.owner, n, n, n + u.lease, 0, u.keep, u.audit,
                    n + u.lease + u.keep + u.audit, 1, 0, 1,
                    CASE WHEN p_slots > 1 THEN (n / p_period) % p_slots ELSE 0 END,
                    u.retry_safe, u.fingerprint,
                    u.scope, u.operation, u.key, '', '', '', u.keep_unknown
                FROM unnest(p_id, p_owner, p_fingerprint, p_lease, p_keep, p_audit, p_retry_safe,
                    p_scope, p_operation, p_key, p_keep_unknown) WITH ORDINALITY
                    AS u(id, owner, fingerprint, lease, keep, audit, retry_safe,
                        scope, operation, key, keep_unknown, ord)
                WHERE (v_open IS NULL OR u.ord = ANY (v_open))
                    AND (v_allowed IS NULL OR u.ord = ANY (v_allowed))
                    AND (v_seen IS NULL OR u.ord <> ALL (v_seen))
                ON CONFLICT DO NOTHING
                RETURNING t.id
            )
            SELECT array_agg(fresh.id), v_left - count(*) INTO v_fresh, v_left FROM fresh;
            IF v_fresh IS NOT NULL THEN
                SELECT m.until INTO v_floor FROM {schema}.meta m WHERE m.name = 'deleted-fences';
                IF v_floor >= n THEN
                    UPDATE {schema}.records t SET fence = v_floor + 1 WHERE t.id = ANY (v_fresh);
                END IF;
                IF n <> v_reported OR v_floor >= n THEN
                    at := n;
                    wrote := true;
                    FOR r IN
                        SELECT u.ord::integer AS ord, t AS rec
                        FROM unnest(p_id) WITH ORDINALITY AS u(id, ord)
                        JOIN {schema}.records t ON t.id = u.id WHERE u.id = ANY (v_fresh)
                    LOOP
                        ord := r.ord;
                        rec := r.rec;
                        RETURN NEXT;
                    END LOOP;
                END IF;
            END IF;
            EXIT WHEN v_left = 0;
            v_waited := true;  -- the insert may have waited for a writer of one of the others
            IF v_fresh IS NOT NULL THEN
                SELECT array_agg(i) INTO v_open FROM generate_subscripts(p_id, 1) i
                WHERE (v_open IS NULL OR i = ANY (v_open)) AND p_id[i] <> ALL (v_fresh);
            END IF;
        END IF;

        IF v_waited THEN
            n := {schema}.clock_1(p_now, p_not_after);
            v_waited := false;
        END IF;
        v_seen := '{}';
        v_replied := '{}';
        FOR r IN
            SELECT u.ord::integer AS ord, t AS rec,
                {schema}.claim_rule_1(t, u.owner, u.fingerprint, u.retry_safe, n) AS rule
            FROM unnest(p_id, p_owner, p_fingerprint, p_retry_safe) WITH ORDINALITY
                AS u(id, owner, fingerprint, retry_safe, ord)
            JOIN {schema}.records t ON t.id = u.id
            WHERE v_open IS NULL OR u.ord = ANY (v_open)
        LOOP
            at := n;
            ord := r.ord;
            rec := r.rec;
            v_rule := r.rule;
            v_seen := v_seen || ord;
            IF v_rule = 0 THEN
                wrote := false;
            ELSIF ord <> ALL (v_allowed) THEN
                wrote := NULL;
            ELSE
                v_waited := true;
                IF p_how = 1 THEN
                    SELECT t.* INTO rec FROM {schema}.records t WHERE t.id = p_id[ord] FOR UPDATE;
                    CONTINUE WHEN NOT FOUND;
                    at := {schema}.clock_1(p_now, p_not_after);
                    v_rule := {schema}.claim_rule_1(
                        rec, p_owner[ord], p_fingerprint[ord], p_retry_safe[ord], at);
                END IF;
                wrote := v_rule > 0;
                CONTINUE WHEN wrote AND NOT {schema}.rewrite_1(  -- it has changed: read again
                    rec, v_rule, at, p_owner[ord], p_fingerprint[ord], p_lease[ord], p_keep[ord],
                    p_audit[ord], p_retry_safe[ord], p_scope[ord], p_operation[ord], p_key[ord],
                    p_keep_unknown[ord]);
            END IF;
            RETURN NEXT;
            v_replied := v_replied || ord;
            v_left := v_left - 1;
        END LOOP;
        EXIT WHEN v_left = 0;

        rec := NULL;
        wrote := NULL;
        FOR ord IN
            SELECT i FROM generate_subscripts(p_id, 1) i
            WHERE (v_open IS NULL OR i = ANY (v_open)) AND i <> ALL (v_seen) AND i <> ALL (v_allowed)
        LOOP
            RETURN NEXT;  -- perhaps the transaction that holds the key has inserted it
            v_replied := v_replied || ord;
            v_left := v_left - 1;
        END LOOP;
        EXIT WHEN v_left = 0;
        SELECT array_agg(i) INTO v_open FROM generate_subscripts(p_id, 1) i
        WHERE (v_open IS NULL OR i = ANY (v_open)) AND i <> ALL (v_replied);
    END LOOP;
    IF v_left > 0 THEN
        RAISE EXCEPTION 'oncekey: keys changed under every look' USING ERRCODE = '40001';
    END IF;
END
$claim$;

-- When to sweep a record that ends now. If possible that is the value its claim has written, so that no
-- index changes; not if a sweeper has postponed it.
CREATE FUNCTION {schema}.sweep_at_1(t {schema}.records, p_state smallint, n bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $sweep$
    SELECT CASE
        WHEN p_state = 4 THEN n + t.keep_unknown + t.audit
        WHEN t.sweep_at BETWEEN n + t.keep + t.audit
            AND greatest(n, t.lease_until) + t.keep + t.audit THEN t.sweep_at
        ELSE n + t.keep + t.audit
    END
$sweep$;

-- A batch of finishes by compare-and-set: of the owner of a pending record, or of the owner of a record
-- that became unknown, who alone knows how it ended. A finish without a row has ended its record; every
-- other one has a row with the record it found and its negated number.
CREATE FUNCTION {schema}.finish_1(
    p_now bigint, p_guard boolean,
    p_id uuid[], p_owner uuid[], p_fence bigint[], p_state smallint[], p_body bytea[]
) RETURNS TABLE (at bigint, ord integer, wrote boolean, rec {schema}.records)
LANGUAGE plpgsql VOLATILE AS $finish$
DECLARE
    n CONSTANT bigint := coalesce(p_now, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
    v_held integer[];
    v_free integer[];
    v_done uuid[];
BEGIN
    IF cardinality(p_id) = 0 THEN
        RETURN;
    ELSIF cardinality(p_id) = 1 AND (NOT p_guard
        OR pg_try_advisory_xact_lock_shared(uuid_hash_extended(p_id[1], {seed})))
    THEN
        UPDATE {schema}.records AS t SET
            state = p_state[1], finished_at = n, body = p_body[1], revision = t.revision + 1,
            sweep_at = {schema}.sweep_at_1(t, p_state[1], n)
        WHERE t.id = p_id[1] AND t.owner = p_owner[1] AND t.fence = p_fence[1]
            AND (t.state = 1 OR (t.state = 4 AND p_state[1] <> 4));
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;
    IF p_guard THEN
        SELECT array_agg(u.ord) INTO v_held FROM unnest(p_id) WITH ORDINALITY AS u(id, ord)
        WHERE NOT pg_try_advisory_xact_lock_shared(uuid_hash_extended(u.id, {seed}));
        IF v_held IS NOT NULL THEN
            -- A transaction runs this key. It has written the record only if the lease had ended.
            SELECT array_agg(s.i) INTO v_free FROM (
                SELECT u.i FROM unnest(v_held) u(i) JOIN {schema}.records t ON t.id = p_id[u.i]
                FOR UPDATE OF t SKIP LOCKED
            ) s;
            SELECT array_agg(i) INTO v_held FROM unnest(v_held) i
            WHERE v_free IS NULL OR i <> ALL (v_free);
        END IF;
    END IF;
    WITH done AS (
        UPDATE {schema}.records AS t SET
            state = u.state, finished_at = n, body = u.body, revision = t.revision + 1,
            sweep_at = {schema}.sweep_at_1(t, u.state, n)
        FROM unnest(p_id, p_owner, p_fence, p_state, p_body) WITH ORDINALITY
            AS u(id, owner, fence, state, body, ord)
        WHERE t.id = u.id AND t.owner = u.owner AND t.fence = u.fence
            AND (t.state = 1 OR (t.state = 4 AND u.state <> 4))
            AND (v_held IS NULL OR u.ord <> ALL (v_held))
        RETURNING t.id
    )
    SELECT array_agg(done.id) INTO v_done FROM done;
    IF cardinality(v_done) = cardinality(p_id) THEN
        RETURN;
    END IF;
    RETURN QUERY
    SELECT n, -u.ord::integer,
        CASE WHEN v_held IS NULL OR u.ord <> ALL (v_held) THEN false END, t
    FROM unnest(p_id) WITH ORDINALITY AS u(id, ord) LEFT JOIN {schema}.records t ON t.id = u.id
    WHERE v_done IS NULL OR u.id <> ALL (v_done);
END
$finish$;

-- The place of these tables: the database and its cluster. A standby keeps its place when it is
-- promoted; a database restored from a dump or made from a template has another place. The function
-- runs with the rights of the tables' creator, so that every role gets the same result.
CREATE FUNCTION {schema}.place_1() RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog AS $place$
DECLARE
    v_database CONSTANT text := (SELECT d.oid FROM pg_database d WHERE d.datname = current_database());
BEGIN
    RETURN v_database || '/' || (SELECT c.system_identifier FROM pg_control_system() c);
EXCEPTION WHEN insufficient_privilege OR undefined_function THEN
    RETURN v_database;
END
$place$;
INSERT INTO {schema}.meta (name, value) VALUES ('place', convert_to({schema}.place_1(), 'UTF8'));

-- The place of these tables, for messages.
CREATE FUNCTION {schema}.address_1() RETURNS text LANGUAGE sql STABLE AS $address$
    SELECT format('database %L on %s', current_database(),
        coalesce(host(inet_server_addr()) || ':' || inet_server_port(), 'a local socket'))
$address$;

-- The store's identity. Tables that were copied to another place get a new identity here, so that two
-- stores are never taken for one. A role without the right to write, or on a standby, reads the present
-- identity.
CREATE FUNCTION {schema}.identify_1(OUT identity bytea, OUT address text)
LANGUAGE plpgsql VOLATILE AS $identify$
DECLARE
    v_place CONSTANT bytea := convert_to({schema}.place_1(), 'UTF8');
BEGIN
    address := {schema}.address_1();
    IF EXISTS (SELECT FROM {schema}.meta m WHERE m.name = 'place' AND m.value <> v_place) THEN
        BEGIN
            UPDATE {schema}.meta m SET value = v_place WHERE m.name = 'place' AND m.value <> v_place;
            IF FOUND THEN  -- no other session was faster
                UPDATE {schema}.meta m SET value = uuid_send(gen_random_uuid())
                WHERE m.name = 'identity';
            END IF;
        EXCEPTION WHEN read_only_sql_transaction OR insufficient_privilege THEN
            NULL;
        END;
    END IF;
    SELECT m.value INTO identity FROM {schema}.meta m WHERE m.name = 'identity';
END
$identify$;

-- The settings that the guarantee depends on (see durability.py). They may change while the server runs.
CREATE FUNCTION {schema}.settings_1() RETURNS text LANGUAGE sql STABLE AS $settings$
    SELECT concat_ws(' ', current_setting('fsync'), current_setting('full_page_writes'),
        current_setting('synchronous_standby_names') !~ '^\s*$', pg_is_in_recovery(),
        (SELECT count(*) FROM pg_stat_replication),
        (SELECT count(*) FROM pg_replication_slots WHERE slot_type = 'logical' AND active))
$settings$;

-- Joins a caller's transaction: reads a record, and locks its key if the transaction may write it.
-- `locked`:
--   null    another transaction holds the key
--   true    this transaction now holds it
--   false   no lock is needed: the record gives the reply, a replay or a rejection
-- `at` is null if the connection leads to another store than p_store; then r_note says where to.
-- `settings` are returned if p_settings is true.
--
-- p_how    0 to run the operation   1 only to look   2 to decide an unknown key
--
-- A transaction may take a lock again that it already has, so the keys it is running are listed in a
-- setting of its own. The setting ends with the transaction and is rolled back with its savepoints, as
-- the lock is. `open_savepoints` counts the savepoints that finished runs have left in this transaction.
CREATE FUNCTION {schema}.join_1(
    p_now bigint, p_ring boolean, p_id uuid, p_owner uuid, p_fingerprint bytea, p_store bytea,
    p_how integer, p_settings boolean,
    OUT at bigint, OUT open_savepoints integer, OUT locked boolean,
    OUT r_id bytea, OUT r_state smallint, OUT r_fingerprint bytea, OUT r_owner bytea,
    OUT r_fence bigint, OUT r_attempt integer, OUT r_retry_safe boolean, OUT r_created_at bigint,
    OUT r_lease_until bigint, OUT r_finished_at bigint, OUT r_keep bigint, OUT r_audit bigint,
    OUT r_scope text, OUT r_operation text, OUT r_key text, OUT r_steps bytea, OUT r_body bytea,
    OUT r_note text, OUT r_keep_unknown bigint, OUT r_revision integer, OUT floor bigint,
    OUT settings text
) LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $join$
DECLARE
    n CONSTANT bigint := coalesce(p_now, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
    v_name CONSTANT text := p_id::text || '/{seed} ';
    v_running CONSTANT text := coalesce(current_setting('oncekey.running', true), '');
    v_writes boolean := p_how = 0;
    t {schema}.records;
BEGIN
    IF (SELECT m.value FROM {schema}.meta m WHERE m.name = 'identity') IS DISTINCT FROM p_store THEN
        r_note := {schema}.address_1();
        RETURN;
    END IF;
    IF p_settings THEN
        settings := {schema}.settings_1();
    END IF;
    IF p_ring AND p_how <> 1 AND current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'oncekey: the ring needs transactions at READ COMMITTED'
            USING ERRCODE = 'OK001';
    END IF;
    at := n;
    open_savepoints := coalesce(nullif(current_setting('oncekey.open_savepoints', true), ''), '0');
    locked := false;
    SELECT o.* INTO t FROM {schema}.records o WHERE o.id = p_id;
    IF FOUND THEN
        v_writes := CASE p_how
            WHEN 0 THEN {schema}.claim_rule_1(t, p_owner, p_fingerprint, true, n) > 0
            WHEN 2 THEN t.state IN (1, 4)
            ELSE false
        END;
    END IF;
    IF v_writes THEN
        IF position(v_name IN v_running) > 0
            OR NOT pg_try_advisory_xact_lock(uuid_hash_extended(p_id, {seed}))
        THEN
            locked := NULL;
            RETURN;
        END IF;
        locked := true;
        IF p_how = 0 THEN
            PERFORM set_config('oncekey.running', v_running || v_name, true);
        END IF;
        IF current_setting('synchronous_commit') IN ('off', 'local') THEN
            PERFORM set_config('synchronous_commit', 'on', true);
        END IF;
        -- Read again in a statement of its own: its snapshot must be taken after the lock.
        SELECT o.* INTO t FROM {schema}.records o WHERE o.id = p_id;
    END IF;
    IF t.id IS NULL THEN
        SELECT m.until INTO floor FROM {schema}.meta m WHERE m.name = 'deleted-fences';
    ELSE
        r_id := uuid_send(t.id);
        r_state := t.state;
        r_fingerprint := t.fingerprint;
        r_owner := uuid_send(t.owner);
        r_fence := t.fence;
        r_attempt := t.attempt;
        r_retry_safe := t.retry_safe;
        r_created_at := t.created_at;
        r_lease_until := t.lease_until;
        r_finished_at := t.finished_at;
        r_keep := t.keep;
        r_audit := t.audit;
        r_scope := t.scope;
        r_operation := t.operation;
        r_key := t.key;
        r_steps := t.steps;
        r_body := t.body;
        r_note := t.note;
        r_keep_unknown := t.keep_unknown;
        r_revision := t.revision;
    END IF;
END
$join$;

-- Writes the outcome of an operation that this transaction runs, as a whole record: in place of the
-- version it read (p_old_fence, p_old_revision), or as a new record if there was none. Raises
--   OK002   another owner has ended the key meanwhile
--   OK003   the claim is gone: this is another transaction, or one rolled back to before the claim
CREATE FUNCTION {schema}.record_1(
    p_now bigint, p_id uuid, p_old_fence bigint, p_old_revision integer, p_archive boolean,
    p_leave boolean, p_slot smallint,
    p_state smallint, p_fingerprint bytea, p_owner uuid, p_fence bigint, p_attempt integer,
    p_retry_safe boolean, p_created_at bigint, p_lease_until bigint, p_keep bigint, p_audit bigint,
    p_scope text, p_operation text, p_key text, p_steps bytea, p_body bytea, p_note text,
    p_keep_unknown bigint
) RETURNS void LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $record$
DECLARE
    n CONSTANT bigint := coalesce(p_now, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
    v_name CONSTANT text := p_id::text || '/{seed} ';
    v_running CONSTANT text := coalesce(current_setting('oncekey.running', true), '');
    v_sweep_at CONSTANT bigint :=
        n + CASE WHEN p_state = 4 THEN p_keep_unknown ELSE p_keep END + p_audit;
BEGIN
    IF position(v_name IN v_running) = 0 THEN
        RAISE EXCEPTION 'oncekey: the transaction that claimed the key is over'
            USING ERRCODE = 'OK003';
    END IF;
    IF p_old_fence IS NULL THEN
        INSERT INTO {schema}.records (
            id, owner, fence, created_at, lease_until, finished_at, keep, audit, sweep_at,
            attempt, revision, state, slot, retry_safe, fingerprint,
            scope, operation, key, steps, body, note, keep_unknown)
        VALUES (
            p_id, p_owner, p_fence, p_created_at, p_lease_until, n, p_keep, p_audit,
            v_sweep_at, p_attempt, 0, p_state, p_slot, p_retry_safe, p_fingerprint,
            p_scope, p_operation, p_key, p_steps, p_body, p_note, p_keep_unknown)
        ON CONFLICT DO NOTHING;
    ELSE
        -- If another session is writing this row, that session wins: never wait for it.
        PERFORM 1 FROM {schema}.records t
        WHERE t.id = p_id AND t.fence = p_old_fence AND t.revision = p_old_revision
        FOR UPDATE SKIP LOCKED;
        IF FOUND THEN
            IF p_archive THEN
                INSERT INTO {schema}.history (
                    id, owner, fence, created_at, lease_until, finished_at, keep, audit, sweep_at,
                    attempt, revision, state, slot, retry_safe, fingerprint,
                    scope, operation, key, steps, body, note, keep_unknown)
                SELECT t.id, t.owner, t.fence, t.created_at, t.lease_until, t.finished_at, t.keep,
                    t.audit, {schema}.expiry_1(t) + t.audit,
                    t.attempt, t.revision, t.state, t.slot, t.retry_safe, t.fingerprint,
                    t.scope, t.operation, t.key, t.steps, t.body, t.note, t.keep_unknown
                FROM {schema}.records t WHERE t.id = p_id
                ON CONFLICT DO NOTHING;
            END IF;
            UPDATE {schema}.records AS t SET
                owner = p_owner, fence = p_fence, created_at = p_created_at,
                lease_until = p_lease_until, finished_at = n, keep = p_keep, audit = p_audit,
                keep_unknown = p_keep_unknown, sweep_at = v_sweep_at, attempt = p_attempt, revision = t.revision + 1,
                state = p_state, retry_safe = p_retry_safe, fingerprint = p_fingerprint,
                scope = p_scope, operation = p_operation, key = p_key, steps = p_steps,
                body = p_body, note = p_note
            WHERE t.id = p_id;
        END IF;
    END IF;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'oncekey: another owner has ended the key' USING ERRCODE = 'OK002';
    END IF;
    PERFORM set_config('oncekey.running', replace(v_running, v_name, ''), true);
    IF p_leave THEN
        PERFORM set_config('oncekey.open_savepoints', (1 + coalesce(
            nullif(current_setting('oncekey.open_savepoints', true), ''), '0')::integer)::text, true);
    END IF;
END
$record$;
