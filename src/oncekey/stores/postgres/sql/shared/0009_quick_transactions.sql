-- Less work for the server where a statement carries one key.
-- compatible: 3

-- The server parses and prepares a check again for every statement that writes a row: that was a sixth
-- of the instructions of a transaction's finish. The functions write no other states, and the model test
-- compares them with the state machine.
--
-- To drop it takes a lock that waits for every open transaction, and all claims would wait behind it: one
-- caller's long transaction would stop the hosts that run meanwhile. So it waits a moment only, a few
-- times, and if there is no such moment the check stays, which costs time and nothing else.
DO $drop$
BEGIN
    FOR v_try IN 1 .. 5 LOOP
        BEGIN
            PERFORM set_config('lock_timeout', '100ms', true);
            ALTER TABLE {schema}.records DROP CONSTRAINT IF EXISTS records_state_check;
            PERFORM set_config('lock_timeout', '60s', true);  -- as in upgrade.sql
            EXIT;
        EXCEPTION WHEN lock_not_available THEN
            PERFORM pg_sleep(0.1);  -- those who came behind go first
        END;
    END LOOP;
END
$drop$;

-- join_2 runs four queries and some twenty expressions, and the server prepares each of them anew in
-- every transaction. For a key without a record two queries do: one reads the store's identity and
-- looks for the record, the other looks again after the lock and reads the floor of the fences.
-- join_2 stays: for everything else, and for the release before this.

-- What join_2 does, with a shorter reply for the usual claim: only the clock reading, as a number, if
-- there is no record, this transaction has the key's lock now, no floor or setting is to be reported,
-- and no earlier run has left anything in this transaction. p_fingerprint and p_store are hexadecimal
-- digits: the query is sent as text, and `decode` there would be planned and run for every claim.
CREATE FUNCTION {schema}.join_3(
    p_now bigint, p_ring boolean, p_id uuid, p_owner uuid, p_fingerprint text, p_store text,
    p_how integer, p_settings boolean
) RETURNS text LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $join$
DECLARE
    n bigint;
    v_is_fresh boolean;
    v_floor bigint;
    v_running text;
BEGIN
    SELECT o.id IS NULL INTO v_is_fresh
    FROM {schema}.meta m LEFT JOIN {schema}.records o ON o.id = p_id
    WHERE m.name = 'identity' AND m.value = decode(p_store, 'hex');
    IF v_is_fresh AND p_how = 0 AND NOT (p_ring OR p_settings)
        AND coalesce(current_setting('oncekey.running', true), '') = ''
        AND coalesce(current_setting('oncekey.open_savepoints', true), '') = ''
        AND current_setting('synchronous_commit') NOT IN ('off', 'local')
    THEN
        IF pg_try_advisory_xact_lock(uuid_hash_extended(p_id, {seed})) THEN
            -- Look again, in a statement of its own: its snapshot must be taken after the lock.
            SELECT coalesce(
                (SELECT m.until FROM {schema}.meta m WHERE m.name = 'deleted-fences'), 0) INTO v_floor
            WHERE NOT EXISTS (SELECT FROM {schema}.records o WHERE o.id = p_id);
            n := coalesce(p_now, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
            IF v_floor < n THEN
                -- An assignment: PERFORM would be one more query.
                v_running := set_config('oncekey.running', p_id::text || '/{seed} ', true);
                RETURN n;
            END IF;
        END IF;
    END IF;
    RETURN {schema}.join_2(p_now, p_ring, p_id, p_owner, decode(p_fingerprint, 'hex'),
        decode(p_store, 'hex'), p_how, p_settings);
END
$join$;
