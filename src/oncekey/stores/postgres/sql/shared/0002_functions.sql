-- Claims and finishes as functions: a batch of them is one round trip and one commit.
--
-- They do what core/state_machine.py decides, for records as they find them, and hand back the records
-- they met, so that the machine words the reply. A test drives both with the same random commands.
-- A later release adds claim_2 beside claim_1 and drops claim_1 one release after that.
--
-- A session plans each statement once and keeps the plan. One that began while the table was small
-- would go on reading all of it, so whatever is not a look-up by index is switched off: by our own
-- sessions' settings, and in enlist_1, which runs in callers' sessions, by its own.
--
-- Advisory locks, all of them for the length of the transaction. One is tried, never waited for:
--   exclusive   a caller's transaction that runs an operation
--   shared      everybody else, to find out whether such a transaction is under way
-- The other ({seed} + 1) is for claims only, where the index does not make keys unique (the ring)
-- or that were told to lock. It is waited for: who has it is another claim, and soon done.

-- When a record's key is fresh again: what is undecided (unknown, or a claim whose owner's death would
-- make it so) stays for keep_unknown, all else for keep.
CREATE FUNCTION {schema}.expiry_1(t {schema}.records) RETURNS bigint LANGUAGE sql IMMUTABLE AS $expiry$
    SELECT CASE WHEN t.state = 4 OR (t.state = 1 AND NOT t.retry_safe)
            THEN t.keep_unknown ELSE t.keep END
        + CASE WHEN t.finished_at <> 0 THEN t.finished_at ELSE t.lease_until END
$expiry$;

-- Which rule of the machine a claim that writes falls under; 0 if it writes nothing.
CREATE FUNCTION {schema}.claim_rule_1(
    t {schema}.records, p_owner uuid, p_fingerprint bytea, p_retry_safe boolean, n bigint
) RETURNS integer LANGUAGE sql IMMUTABLE AS $rule$
    SELECT CASE
        WHEN n >= {schema}.expiry_1(t) THEN 1  -- expired: a new generation
        WHEN t.state = 0 AND t.owner = p_owner THEN 0  -- a straggler
        WHEN t.state = 0 AND (t.steps = '' OR t.fingerprint = p_fingerprint) THEN 2  -- freed
        WHEN t.state = 1 AND t.owner = p_owner THEN 3  -- mine: its reply was lost
        WHEN t.fingerprint <> p_fingerprint OR t.state <> 1 OR n < t.lease_until THEN 0
        WHEN t.retry_safe AND p_retry_safe THEN 4  -- take over
        ELSE 5  -- give up: unknown
    END
$rule$;

-- Rewrite one record as its rule says, unless it has changed since it was read.
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

-- Raises OK005 where it is later than p_not_after: whoever sent this has stopped waiting and was told
-- that nothing ran. Bounds the waits for locks in what follows. Gives p_now, so that it can stand for
-- it and comes before all else.
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

-- The clock, read again after a wait for others. Raises as in_time_1 where nobody waits any more.
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

-- Which of these rows somebody else holds locked. In a function, so that the session's lock_timeout
-- holds for the table itself.
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

-- A batch of claims, of distinct ids in order. The row with ord 0 is a clock reading: a claim that is
-- not mentioned has inserted a fresh record with it as fence. Any other is answered by the record it
-- met and `wrote`: true, it has rewritten that record; false, it wrote nothing; null, an open
-- transaction holds the key. `at` is the reading that decided. A fresh record with another fence is
-- shown like one that this claim met as its own.
--
-- The clock is read again after every wait: for a claim's lock, for who writes the same key.
-- Fresh fences are above the floor. That is looked at after the insert, in a statement of its own: the
-- insert may have waited for a sweeper that has just deleted the key's last record.
--
-- p_how    0 insert first, then compare-and-set
--          1 look first, and lock the row to be rewritten
--          2 look first, take the key's lock for claims, look again
-- p_guard  whether to heed callers' transactions
-- p_slots  more than 1: the ring, where only the lock makes a key unique
CREATE FUNCTION {schema}.claim_1(
    p_now bigint, p_not_after bigint, p_how integer, p_guard boolean, p_slots integer, p_period bigint,
    p_id uuid[], p_owner uuid[], p_fingerprint bytea[], p_lease bigint[], p_keep bigint[],
    p_audit bigint[], p_retry_safe boolean[], p_scope text[], p_operation text[], p_key text[],
    p_keep_unknown bigint[]
) RETURNS TABLE (at bigint, ord integer, wrote boolean, rec {schema}.records)
LANGUAGE plpgsql VOLATILE AS $claim$
DECLARE
    n bigint := coalesce(p_now, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
    v_told bigint := n;  -- what the row with ord 0 says
    v_waited boolean := false;  -- since n was read
    v_floor bigint;
    v_todo integer[];  -- claims without an answer; null: all
    v_may integer[];   -- claims that may write; null: all
    v_seen integer[];  -- claims whose record the last look found
    v_left integer := cardinality(p_id);
    v_fresh uuid[];
    v_answered integer[];
    v_rule integer;
    r record;
BEGIN
    at := n;
    IF p_how < 2 AND p_slots = 1 THEN
        ord := 0;
        RETURN NEXT;
    END IF;

    IF v_left > 1 THEN
        -- What all claims share was sent once.
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
        -- A lone claim goes without arrays: that saves a third of its time.
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
        v_answered := '{}';
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
            v_answered := v_answered || ord;
            v_left := v_left - 1;
        END LOOP;
        rec := NULL;
        wrote := NULL;
        ord := 0;
        IF v_left = 0 THEN
            RETURN NEXT;
            RETURN;
        END IF;
        SELECT array_agg(i) INTO v_todo FROM generate_subscripts(p_id, 1) i
        WHERE i <> ALL (v_answered);
        SELECT coalesce(array_agg(i), '{}') INTO v_may FROM unnest(v_todo) i
        WHERE NOT p_guard OR pg_try_advisory_xact_lock_shared(uuid_hash_extended(p_id[i], {seed}));
        -- The lock in a statement of its own: the look that follows must be younger than it.
        PERFORM pg_advisory_xact_lock(uuid_hash_extended(p_id[i], {seed} + 1)) FROM unnest(v_may) i;
        n := {schema}.clock_1(p_now, p_not_after);
        v_told := n;
        at := n;
        RETURN NEXT;
    ELSIF p_guard THEN
        SELECT array_agg(u.ord) INTO v_may FROM unnest(p_id) WITH ORDINALITY AS u(id, ord)
        WHERE NOT pg_try_advisory_xact_lock_shared(uuid_hash_extended(u.id, {seed}));
        IF v_may IS NOT NULL THEN  -- some are held: keep the others
            SELECT coalesce(array_agg(i), '{}') INTO v_may FROM generate_subscripts(p_id, 1) i
            WHERE i <> ALL (v_may);
        END IF;
    END IF;

    FOR turn IN 1 .. 20 LOOP
        IF turn > 1 OR (p_how = 0 AND p_slots = 1) THEN
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
                WHERE (v_todo IS NULL OR u.ord = ANY (v_todo))
                    AND (v_may IS NULL OR u.ord = ANY (v_may))
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
                IF n <> v_told OR v_floor >= n THEN
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
            v_waited := true;  -- whoever is writing one of the others was waited for
            IF v_fresh IS NOT NULL THEN
                SELECT array_agg(i) INTO v_todo FROM generate_subscripts(p_id, 1) i
                WHERE (v_todo IS NULL OR i = ANY (v_todo)) AND p_id[i] <> ALL (v_fresh);
            END IF;
        END IF;

        IF v_waited THEN
            n := {schema}.clock_1(p_now, p_not_after);
            v_waited := false;
        END IF;
        v_seen := '{}';
        v_answered := '{}';
        FOR r IN
            SELECT u.ord::integer AS ord, t AS rec,
                {schema}.claim_rule_1(t, u.owner, u.fingerprint, u.retry_safe, n) AS rule
            FROM unnest(p_id, p_owner, p_fingerprint, p_retry_safe) WITH ORDINALITY
                AS u(id, owner, fingerprint, retry_safe, ord)
            JOIN {schema}.records t ON t.id = u.id
            WHERE v_todo IS NULL OR u.ord = ANY (v_todo)
        LOOP
            at := n;
            ord := r.ord;
            rec := r.rec;
            v_rule := r.rule;
            v_seen := v_seen || ord;
            IF v_rule = 0 THEN
                wrote := false;
            ELSIF ord <> ALL (v_may) THEN
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
                CONTINUE WHEN wrote AND NOT {schema}.rewrite_1(  -- it changed: look again
                    rec, v_rule, at, p_owner[ord], p_fingerprint[ord], p_lease[ord], p_keep[ord],
                    p_audit[ord], p_retry_safe[ord], p_scope[ord], p_operation[ord], p_key[ord],
                    p_keep_unknown[ord]);
            END IF;
            RETURN NEXT;
            v_answered := v_answered || ord;
            v_left := v_left - 1;
        END LOOP;
        EXIT WHEN v_left = 0;

        rec := NULL;
        wrote := NULL;
        FOR ord IN
            SELECT i FROM generate_subscripts(p_id, 1) i
            WHERE (v_todo IS NULL OR i = ANY (v_todo)) AND i <> ALL (v_seen) AND i <> ALL (v_may)
        LOOP
            RETURN NEXT;  -- perhaps that transaction has inserted it
            v_answered := v_answered || ord;
            v_left := v_left - 1;
        END LOOP;
        EXIT WHEN v_left = 0;
        SELECT array_agg(i) INTO v_todo FROM generate_subscripts(p_id, 1) i
        WHERE (v_todo IS NULL OR i = ANY (v_todo)) AND i <> ALL (v_answered);
    END LOOP;
    IF v_left > 0 THEN
        RAISE EXCEPTION 'oncekey: keys changed under every look' USING ERRCODE = '40001';
    END IF;
END
$claim$;

-- When to look at a record that ends now: as its claim has written it where that will do, so that no
-- index is touched; not where a sweeper has put it off.
CREATE FUNCTION {schema}.sweep_at_1(t {schema}.records, p_state smallint, n bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $sweep$
    SELECT CASE
        WHEN p_state = 4 THEN n + t.keep_unknown + t.audit
        WHEN t.sweep_at BETWEEN n + t.keep + t.audit
            AND greatest(n, t.lease_until) + t.keep + t.audit THEN t.sweep_at
        ELSE n + t.keep + t.audit
    END
$sweep$;

-- A batch of finishes, as compare-and-set: of the pending owner, or of the owner of a record that was
-- given up as unknown, who is the only witness. One that is not mentioned has ended its record; any
-- other is answered by the record there is, under its negated number.
CREATE FUNCTION {schema}.finish_1(
    p_now bigint, p_guard boolean,
    p_id uuid[], p_owner uuid[], p_fence bigint[], p_state smallint[], p_body bytea[]
) RETURNS TABLE (at bigint, ord integer, wrote boolean, rec {schema}.records)
LANGUAGE plpgsql VOLATILE AS $finish$
DECLARE
    n CONSTANT bigint := coalesce(p_now, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
    v_barred integer[];
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
        SELECT array_agg(u.ord) INTO v_barred FROM unnest(p_id) WITH ORDINALITY AS u(id, ord)
        WHERE NOT pg_try_advisory_xact_lock_shared(uuid_hash_extended(u.id, {seed}));
        IF v_barred IS NOT NULL THEN
            -- A transaction runs this key. It has written the record only if the lease was over.
            SELECT array_agg(s.i) INTO v_free FROM (
                SELECT u.i FROM unnest(v_barred) u(i) JOIN {schema}.records t ON t.id = p_id[u.i]
                FOR UPDATE OF t SKIP LOCKED
            ) s;
            SELECT array_agg(i) INTO v_barred FROM unnest(v_barred) i
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
            AND (v_barred IS NULL OR u.ord <> ALL (v_barred))
        RETURNING t.id
    )
    SELECT array_agg(done.id) INTO v_done FROM done;
    IF cardinality(v_done) = cardinality(p_id) THEN
        RETURN;
    END IF;
    RETURN QUERY
    SELECT n, -u.ord::integer,
        CASE WHEN v_barred IS NULL OR u.ord <> ALL (v_barred) THEN false END, t
    FROM unnest(p_id) WITH ORDINALITY AS u(id, ord) LEFT JOIN {schema}.records t ON t.id = u.id
    WHERE v_done IS NULL OR u.id <> ALL (v_done);
END
$finish$;

-- Where these tables are: which database of which cluster. A standby that is promoted is still there;
-- what was restored from a dump or made from a template is elsewhere. With the rights of whoever made
-- the tables, so that every role gets the same answer.
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

-- The same for people.
CREATE FUNCTION {schema}.address_1() RETURNS text LANGUAGE sql STABLE AS $address$
    SELECT format('database %L on %s', current_database(),
        coalesce(host(inet_server_addr()) || ':' || inet_server_port(), 'a local socket'))
$address$;

-- The store's identity. Tables that were copied to another place get one of their own here, so that
-- two stores never pass for one. Who may not write, or reads a standby, is told what is there.
CREATE FUNCTION {schema}.identify_1(OUT identity bytea, OUT address text)
LANGUAGE plpgsql VOLATILE AS $identify$
DECLARE
    v_place CONSTANT bytea := convert_to({schema}.place_1(), 'UTF8');
BEGIN
    address := {schema}.address_1();
    IF EXISTS (SELECT FROM {schema}.meta m WHERE m.name = 'place' AND m.value <> v_place) THEN
        BEGIN
            UPDATE {schema}.meta m SET value = v_place WHERE m.name = 'place' AND m.value <> v_place;
            IF FOUND THEN  -- and nobody else was faster
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

-- What a guarantee rests on, in few words (see durability.py): it may change while the server runs.
CREATE FUNCTION {schema}.settings_1() RETURNS text LANGUAGE sql STABLE AS $settings$
    SELECT concat_ws(' ', current_setting('fsync'), current_setting('full_page_writes'),
        current_setting('synchronous_standby_names') !~ '^\s*$', pg_is_in_recovery(),
        (SELECT count(*) FROM pg_stat_replication),
        (SELECT count(*) FROM pg_replication_slots WHERE slot_type = 'logical' AND active))
$settings$;

-- What a caller's transaction meets: the record, and whether the transaction may write it:
-- `locked` is null, another one holds the key; true, this one now does; false, the record answers
-- by itself, and replays and rejections take no lock. `at` is null where the connection leads to
-- another store than p_store; then r_note says where to. `settings` are given where asked for.
--
-- p_how    0 to run the operation   1 only to look   2 to decide an unknown key
--
-- A lock is no obstacle to who has it already, so the keys this transaction is running are named in
-- a setting of its own, which ends with it and is undone with its savepoints, as the lock is.
-- `left_open` counts the savepoints that finished runs have left in this transaction.
CREATE FUNCTION {schema}.enlist_1(
    p_now bigint, p_ring boolean, p_id uuid, p_owner uuid, p_fingerprint bytea, p_store bytea,
    p_how integer, p_settings boolean,
    OUT at bigint, OUT left_open integer, OUT locked boolean,
    OUT r_id bytea, OUT r_state smallint, OUT r_fingerprint bytea, OUT r_owner bytea,
    OUT r_fence bigint, OUT r_attempt integer, OUT r_retry_safe boolean, OUT r_created_at bigint,
    OUT r_lease_until bigint, OUT r_finished_at bigint, OUT r_keep bigint, OUT r_audit bigint,
    OUT r_scope text, OUT r_operation text, OUT r_key text, OUT r_steps bytea, OUT r_body bytea,
    OUT r_note text, OUT r_keep_unknown bigint, OUT r_revision integer, OUT floor bigint,
    OUT settings text
) LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $enlist$
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
    left_open := coalesce(nullif(current_setting('oncekey.left_open', true), ''), '0');
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
        -- The look in a statement of its own: it must be younger than the lock.
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
$enlist$;

-- The outcome of an operation that this transaction runs, as a whole record: in place of the
-- version it met (p_old_fence, p_old_revision), or new where it met none. Raises
--   OK002   somebody else has ended the key meanwhile
--   OK003   the claim is gone: this is another transaction, or was rolled back to before the claim
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
        -- Whoever is writing this row at this moment is first: never wait for them.
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
        PERFORM set_config('oncekey.left_open', (1 + coalesce(
            nullif(current_setting('oncekey.left_open', true), ''), '0')::integer)::text, true);
    END IF;
END
$record$;
