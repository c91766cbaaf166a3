-- A lone claim whose key is swept while it looks for its record.
-- compatible: 3

-- What claim_one_1 was before, with another end: if the record was there when the claim began and was
-- deleted directly afterwards, claim_1 inserts a new one and returns no row for it. The function
-- returned null then, for a claim that it had made.
CREATE OR REPLACE FUNCTION {schema}.claim_one_1(
    p_now bigint, p_not_after bigint, p_lock_timeout text, p_settings boolean, p_guard boolean,
    p_id uuid, p_owner uuid, p_fingerprint bytea, p_lease bigint, p_keep bigint, p_audit bigint,
    p_retry_safe boolean, p_scope text, p_operation text, p_key text, p_keep_unknown bigint
) RETURNS text LANGUAGE plpgsql VOLATILE AS $claim$
DECLARE
    v_clock CONSTANT bigint := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    v_now CONSTANT bigint := coalesce(p_now, v_clock);
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
    IF NOT p_guard OR
        pg_try_advisory_xact_lock_shared(uuid_hash_extended(p_id, {seed}))
    THEN
        INSERT INTO {schema}.records (
            id, owner, fence, created_at, lease_until, finished_at, keep, audit, sweep_at,
            attempt, revision, state, slot, retry_safe, fingerprint,
            scope, operation, key, steps, body, note, keep_unknown)
        VALUES (p_id, p_owner, v_now, v_now, v_now + p_lease, 0, p_keep, p_audit,
            v_now + p_lease + p_keep + p_audit, 1, 0, 1, 0, p_retry_safe, p_fingerprint,
            p_scope, p_operation, p_key, '', '', '', p_keep_unknown)
        ON CONFLICT DO NOTHING;
        IF FOUND THEN
            -- In a statement of its own: a sweeper may have let the insert wait.
            SELECT m.until INTO v_floor FROM {schema}.meta m WHERE m.name = 'deleted-fences';
            IF v_floor >= v_now THEN
                UPDATE {schema}.records t SET fence = v_floor + 1 WHERE t.id = p_id;
                RETURN (SELECT json_build_array(v_now, v_settings::json, v_now, true, {schema}.columns_1(t))
                    FROM {schema}.records t WHERE t.id = p_id);
            END IF;
            RETURN format('[%s, %s]', v_now, v_settings);
        END IF;
    END IF;
    -- The insert may have waited, so claim_1 reads the clock again. Without a row of its own the claim
    -- has inserted a new record, with the reading of the row with ord 0 as its fence.
    RETURN (SELECT CASE f.ord
            WHEN 0 THEN json_build_array(f.at, v_settings::json)
            ELSE json_build_array(v_now, v_settings::json, f.at, f.wrote, {schema}.columns_1(f.rec)) END
        FROM {schema}.claim_1(p_now, p_not_after, 0, p_guard, 1, 0, ARRAY[p_id], ARRAY[p_owner],
            ARRAY[p_fingerprint], ARRAY[p_lease], ARRAY[p_keep], ARRAY[p_audit],
            ARRAY[p_retry_safe], ARRAY[p_scope], ARRAY[p_operation], ARRAY[p_key],
            ARRAY[p_keep_unknown]) f
        ORDER BY f.ord DESC LIMIT 1);
END
$claim$;
