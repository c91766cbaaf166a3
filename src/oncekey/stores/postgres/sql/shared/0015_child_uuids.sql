-- The operators' view of steps, with the child UUID that a client may have sent instead of the child key.
-- compatible: 3

-- The child UUID in the stored body of an unfinished step; null if there is none, as in steps that an older
-- release stored, or if the body cannot be decoded. The bytes are those that step_1 decodes, which cannot
-- return one column more without being dropped, and the view with it.
CREATE FUNCTION {schema}.child_uuid_1(p_body bytea) RETURNS text
LANGUAGE plpgsql STABLE STRICT AS $uuid$
DECLARE
    v CONSTANT bytea := p_body || ''::bytea;  -- decompressed once, not for every byte that is read
    v_length integer;  -- of the facts
BEGIN
    IF length(v) < 3 OR get_byte(v, 0) <> 1 THEN
        RETURN NULL;
    END IF;
    v_length := get_byte(v, 1) * 256 + get_byte(v, 2);
    IF v_length + 3 > length(v) THEN
        RETURN NULL;
    END IF;
    RETURN convert_from(substring(v FROM 4 FOR v_length), 'UTF8')::json ->> 'uuid';
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
    RETURN NULL;
END
$uuid$;

-- Those who may execute step_1, which the view called so far, may execute this function too.
DO $rights$
DECLARE
    v_function CONSTANT text := '{schema_text}.child_uuid_1(bytea)';
    v_role text;
BEGIN
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', v_function);
    FOR v_role IN
        SELECT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END
        FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
        WHERE p.oid = '{schema_text}.step_1(bytea)'::regprocedure
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %s', v_function, v_role);
    END LOOP;
END
$rights$;

-- The view of 0014_quoted_intents.sql, replaced in place with one more column at its end. Which form the
-- other service has got is not known here (see core/step_format.py).
CREATE OR REPLACE VIEW {schema}.steps AS
SELECT r.id, r.scope, split_part(r.operation, chr(9), 1) AS operation, r.key, s.number,
    s.name AS step, s.done, s.at,
    CASE WHEN s.done THEN {schema}.answer_1(f.content) END AS result,
    CASE WHEN NOT s.done THEN f.child_key END AS intent,
    CASE WHEN s.done THEN f.external_id END AS external_id,
    CASE WHEN s.done THEN f.status END AS status,
    CASE WHEN NOT s.done THEN {schema}.answer_1(f.content) END AS request,
    CASE WHEN NOT s.done THEN '"' || f.child_key || '"' END AS quoted_intent,
    CASE WHEN NOT s.done THEN {schema}.child_uuid_1(s.body) END AS child_uuid
FROM {schema}.records r
CROSS JOIN LATERAL (
    SELECT (row_number() OVER (ORDER BY o.number))::integer AS number, o.name, o.done, o.at, o.body
    FROM {schema}.steps_1(r.steps) o
    WHERE o.name IS NULL OR NOT starts_with(o.name, 'oncekey:')
) s
LEFT JOIN LATERAL {schema}.step_1(s.body) f ON true
WHERE r.steps <> ''::bytea;
