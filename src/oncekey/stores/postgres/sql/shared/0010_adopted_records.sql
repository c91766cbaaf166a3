-- Records that come whole from another store.
-- compatible: 3

-- The ids among these that have no record. In a ring no index makes a key unique, so the locks of the
-- keys are taken first and held until the transaction ends; the read is a statement of its own, whose
-- snapshot is taken after that (see 0002_functions.sql). So whoever inserts what this returns, in the
-- same statement, is the only one who does.
CREATE FUNCTION {schema}.absent_1(p_id uuid[]) RETURNS SETOF uuid
LANGUAGE plpgsql VOLATILE AS $absent$
BEGIN
    PERFORM pg_advisory_xact_lock(uuid_hash_extended(u.id, {seed} + 1))
    FROM unnest(p_id) AS u(id);
    RETURN QUERY SELECT u.id FROM unnest(p_id) AS u(id)
    WHERE NOT EXISTS (SELECT 1 FROM {schema}.records t WHERE t.id = u.id);
END
$absent$;
