-- Empties a slot of the ring. A plain table has nothing to rotate, and this is not called for it.
--
-- A slot is emptied when nothing in it is needed any more. The slot that is to be filled next is also
-- emptied if a few records in it are still needed (they were renewed, or claimed again in place): those
-- move to the current slot. No reader misses a record that moves: a statement locks all slots before it
-- takes its snapshot, and a transaction that has read keeps the slots locked until it ends.
--
-- Undecided records outlive every slot. Before their slot is emptied they move to records_kept, row by
-- row and without that lock. Each moves in one transaction, so that every snapshot has it in one place,
-- and a session that is about to write it finds it gone and reads again.
--
-- The read before the lock is long and blocks nobody; the work under the lock is short. The wait for
-- the lock is short, because claims queue behind a waiter. Only one session rotates at a time: two would
-- read and then wait for each other. Returns the number of records removed, 0 if nothing was due or if
-- a lock was not available, which is tried again later; and whether there is more to do, so that it
-- should be called again.
CREATE FUNCTION {schema}.rotate_1(
    p_now bigint, p_slots integer, p_period bigint, p_moves bigint,
    OUT removed bigint, OUT more boolean
) LANGUAGE plpgsql VOLATILE AS $rotate$
DECLARE
    n CONSTANT bigint := coalesce(p_now, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
    v_number CONSTANT bigint := n / p_period;  -- of the current period
    v_slot integer;
    v_table text;
    v_rows bigint;
    v_live bigint;
    v_moved bigint := 0;
    v_fence bigint;  -- the highest one that is deleted
    -- The columns of a record in the order in which they are moved; then its slot.
    v_columns CONSTANT text := 'id, owner, fence, created_at, lease_until, finished_at, keep, audit, '
        'keep_unknown, sweep_at, attempt, revision, state, retry_safe, fingerprint, scope, '
        'operation, key, steps, body, note';
    -- The owner's lease has ended without an outcome, and the record is not garbage yet.
    v_undecided CONSTANT text := '(t.state = 4 OR (t.state = 1 AND NOT t.retry_safe)) '
        'AND t.lease_until <= $1 AND {schema}.expiry_1(t) + t.audit > $1';
BEGIN
    removed := 0;
    more := false;
    IF NOT pg_try_advisory_xact_lock({seed}) THEN
        RETURN;  -- another session rotates, or the tables are being migrated
    END IF;
    PERFORM set_config('lock_timeout', '50ms', true);
    FOR back IN REVERSE p_slots - 1 .. 2 LOOP
        v_slot := (v_number - back + p_slots) % p_slots;
        v_table := format('{schema}.records_%s', v_slot);
        EXECUTE format('SELECT count(*) FROM (SELECT 1 FROM %s t WHERE t.sweep_at > $1 '
            'AND NOT (%s) LIMIT $2) live', v_table, v_undecided) INTO v_live USING n, p_moves + 1;
        CONTINUE WHEN v_live > CASE WHEN back = p_slots - 1 THEN p_moves ELSE 0 END;
        -- Counted up to a limit: above it the planner's estimate is good enough.
        EXECUTE format('SELECT count(*) FROM (SELECT 1 FROM %s LIMIT 100001) counted', v_table)
            INTO v_rows;
        IF v_rows > 100000 THEN
            SELECT greatest(v_rows, c.reltuples::bigint) INTO v_rows
            FROM pg_class c WHERE c.oid = v_table::regclass;
        END IF;
        CONTINUE WHEN v_rows = v_live;  -- nothing to remove
        EXECUTE format(
            'WITH gone AS (DELETE FROM %1$s d WHERE d.id = ANY (ARRAY('
            'SELECT t.id FROM %1$s t WHERE %2$s LIMIT $2 FOR UPDATE SKIP LOCKED)) RETURNING %3$s) '
            'INSERT INTO {schema}.records (%3$s, slot) SELECT gone.*, -1 FROM gone',
            v_table, v_undecided, v_columns) USING n, p_moves;
        GET DIAGNOSTICS v_moved = ROW_COUNT;
        IF v_moved = p_moves THEN
            more := true;
            RETURN;
        END IF;
        v_rows := v_rows - v_moved;
        EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', v_table);
        EXECUTE format(
            'INSERT INTO {schema}.records (%2$s, slot) '
            'SELECT %2$s, $2 FROM %1$s t WHERE t.sweep_at > $1 OR (%3$s)',
            v_table, v_columns, v_undecided) USING n, (v_number % p_slots)::smallint;
        GET DIAGNOSTICS v_moved = ROW_COUNT;
        -- By the index of fences, from its end: few records at the end are among those that move.
        EXECUTE format('SELECT t.fence FROM %s t WHERE NOT (t.sweep_at > $1 OR (%s)) '
            'ORDER BY t.fence + 0 DESC LIMIT 1', v_table, v_undecided) INTO v_fence USING n;
        IF v_fence IS NOT NULL THEN
            INSERT INTO {schema}.meta AS m (name, value, until) VALUES ('deleted-fences', '', v_fence)
            ON CONFLICT (name) DO UPDATE SET until = excluded.until WHERE m.until < excluded.until;
        END IF;
        EXECUTE format('TRUNCATE %s', v_table);
        removed := greatest(v_rows - v_moved, 0);
        more := removed = 0;
        RETURN;
    END LOOP;
EXCEPTION WHEN lock_not_available THEN
    removed := 0;
    more := false;
END
$rotate$;
