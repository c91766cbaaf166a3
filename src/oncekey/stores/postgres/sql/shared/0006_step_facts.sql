-- The operators' view of steps, with the other service's id and status of each step, and its request.
-- compatible: 3
--
-- The view is replaced in place, which can only add columns at its end: grants on it stay, and so do
-- views and reports that were built on it. Dropping it would fail if there are such views, and would
-- otherwise drop every grant, unnoticed until somebody needs it. If EXECUTE was revoked from PUBLIC, a
-- role that reads this view needs it on answer_1, steps_1 and step_1; roles that have it on the first
-- two get it on the third here.

-- The stored body of one step, decoded as core/step_format.py does; all null if it cannot be decoded.
-- The bytes: version, u16 length of the facts, the facts as a JSON object, the envelope of an outcome
-- (see answer_1).
CREATE FUNCTION {schema}.step_1(
    p_body bytea, OUT child_key text, OUT external_id text, OUT status text, OUT content bytea
) LANGUAGE plpgsql STABLE STRICT AS $step$
DECLARE
    v CONSTANT bytea := p_body || ''::bytea;  -- decompressed once, not for every byte that is read
    v_end integer;  -- the end of the facts
    v_facts json;
BEGIN
    IF length(v) < 3 OR get_byte(v, 0) <> 1 THEN
        RETURN;
    END IF;
    v_end := 3 + get_byte(v, 1) * 256 + get_byte(v, 2);
    IF v_end > length(v) THEN
        RETURN;
    END IF;
    v_facts := convert_from(substring(v FROM 4 FOR v_end - 3), 'UTF8')::json;
    IF json_typeof(v_facts) <> 'object' THEN
        RETURN;
    END IF;
    content := substring(v FROM v_end + 1);
    -- The content is returned even if the facts fail: JSON may hold what text here cannot (\u0000).
    child_key := v_facts ->> 'key';
    external_id := v_facts ->> 'external_id';
    status := v_facts ->> 'status';
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
    RETURN;
END
$step$;

-- The roles that may execute what the view called so far may execute this function too, and no other:
-- that is every role, unless the right was revoked from PUBLIC and granted to some.
DO $rights$
DECLARE
    v_function CONSTANT text := '{schema_text}.step_1(bytea)';
    v_role text;
BEGIN
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', v_function);
    FOR v_role IN
        SELECT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END
        FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
        WHERE p.oid = '{schema_text}.steps_1(bytea)'::regprocedure
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %s', v_function, v_role);
    END LOOP;
END
$rights$;

-- One row per step of the operation, in order; oncekey's internal steps are not shown. An unfinished
-- step may have reached the other service: `intent` is the child key it was sent with, under which to
-- ask there, and `request` is what was to be sent, if that was stored. A finished step has its
-- `result`, and the other service's `external_id` and `status` for it.
CREATE OR REPLACE VIEW {schema}.steps AS
SELECT r.id, r.scope, r.operation, r.key, s.number, s.name AS step, s.done, s.at,
    CASE WHEN s.done THEN {schema}.answer_1(f.content) END AS result,
    CASE WHEN NOT s.done THEN f.child_key END AS intent,
    CASE WHEN s.done THEN f.external_id END AS external_id,
    CASE WHEN s.done THEN f.status END AS status,
    CASE WHEN NOT s.done THEN {schema}.answer_1(f.content) END AS request
FROM {schema}.records r
CROSS JOIN LATERAL (
    SELECT (row_number() OVER (ORDER BY o.number))::integer AS number, o.name, o.done, o.at, o.body
    FROM {schema}.steps_1(r.steps) o
    WHERE o.name IS NULL OR NOT starts_with(o.name, 'oncekey:')
) s
LEFT JOIN LATERAL {schema}.step_1(s.body) f ON true
WHERE r.steps <> ''::bytea;
