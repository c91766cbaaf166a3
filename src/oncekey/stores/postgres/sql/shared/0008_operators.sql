-- What operators see and do: notes that stay with a key, and the view of operations with the origin of
-- each and the answers of HTTP requests.
-- compatible: 3

-- A freed key keeps its note when it is claimed again: the note says who freed it and why. Its lines are
-- ended (see core/record.py). Otherwise this is the function of 0002_functions.sql.
CREATE OR REPLACE FUNCTION {schema}.rewrite_1(
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
            IF p_rule = 1 THEN
                r.note := '';
            ELSIF r.note <> '' AND right(r.note, 1) <> chr(10) THEN
                r.note := right(r.note, {note_kept}) || chr(10);
            END IF;
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
    WHERE o.id = t.id AND o.revision = t.revision AND o.fence = t.fence;
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

-- The stored response of an HTTP request as JSON: its status, its headers in pairs, and its body, as
-- JSON if it is that and as text otherwise; null for anything else. Its bytes, after the envelope's head
-- (see answer_1): a line of JSON, then the body (see http/response_codec.py). `STRICT` and `STABLE` as
-- answer_1, which leaves such answers to this function.
CREATE FUNCTION {schema}.response_1(p_body bytea) RETURNS text
LANGUAGE plpgsql STABLE STRICT AS $response$
DECLARE
    v CONSTANT bytea := p_body || ''::bytea;  -- decompressed once
    v_line integer;
    v_head json;
    v_text text;
    v_body json;
BEGIN
    IF substring(v FROM 1 FOR 8) <> '\x0101056874747032' THEN
        RETURN NULL;
    END IF;
    v_line := position('\x0a'::bytea IN substring(v FROM 9));
    v_head := convert_from(substring(v FROM 9 FOR v_line - 1), 'UTF8')::json;
    BEGIN
        v_text := convert_from(substring(v FROM 9 + v_line), 'UTF8');
        v_body := v_text::json;
    EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
        v_body := to_json(v_text);  -- null if it is no text
    END;
    RETURN json_build_object(
        'status', v_head -> 'status', 'headers', v_head -> 'headers', 'body', v_body);
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
    RETURN NULL;
END
$response$;

-- Those who may execute answer_1, which the view called so far, may execute this function too.
DO $rights$
DECLARE
    v_function CONSTANT text := '{schema_text}.response_1(bytea)';
    v_role text;
BEGIN
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', v_function);
    FOR v_role IN
        SELECT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END
        FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
        WHERE p.oid = '{schema_text}.answer_1(bytea)'::regprocedure
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %s', v_function, v_role);
    END LOOP;
END
$rights$;

-- The view of 0004_views.sql, replaced in place. The column `operation` of the table has the
-- operation's name and, after tabs, the surface, the route and the route's published name (see
-- core/origin.py). `answer` of an HTTP request is its stored response.
CREATE OR REPLACE VIEW {schema}.operations AS
SELECT r.id, left(replace(r.id::text, '-', ''), 12) AS tag, r.scope,
    split_part(r.operation, chr(9), 1) AS operation, r.key,
    CASE
        WHEN r.state = 1 AND NOT r.retry_safe AND n.us >= r.lease_until AND n.us < e.us
            THEN 'unknown'
        ELSE (ARRAY['absent', 'pending', 'succeeded', 'failed', 'unknown'])[r.state + 1]
    END AS state,
    n.us >= e.us AS expired, r.attempt, r.fence,
    'epoch'::timestamptz + interval '1 microsecond' * r.created_at AS created_at,
    'epoch'::timestamptz + interval '1 microsecond' * r.lease_until AS lease_until,
    'epoch'::timestamptz + interval '1 microsecond' * nullif(r.finished_at, 0) AS finished_at,
    'epoch'::timestamptz + interval '1 microsecond' * e.shown AS expires_at,
    'epoch'::timestamptz + interval '1 microsecond' * (e.shown + r.audit) AS audit_until,
    CASE WHEN length(r.body) < 3 THEN NULL
        WHEN h.head = '\x0101056874747032' THEN 'response'
        ELSE CASE get_byte(h.head, 0) WHEN 1
            THEN (ARRAY['value', 'error', 'tombstone'])[get_byte(h.head, 1)] END
    END AS answer_kind,
    coalesce({schema}.response_1(r.body), {schema}.answer_1(r.body)) AS answer, r.note,
    coalesce(nullif(split_part(r.operation, chr(9), 2), ''), 'function') AS surface,
    split_part(r.operation, chr(9), 3) AS route, split_part(r.operation, chr(9), 4) AS name
FROM {schema}.records r
CROSS JOIN (SELECT (extract(epoch FROM statement_timestamp()) * 1000000)::bigint AS us) n
CROSS JOIN LATERAL (
    SELECT {schema}.expiry_1(r) AS us, CASE WHEN r.keep_unknown < {forever}
        OR NOT (r.state = 4 OR (r.state = 1 AND NOT r.retry_safe)) THEN {schema}.expiry_1(r) END AS shown
) e
CROSS JOIN LATERAL (SELECT substring(r.body FROM 1 FOR 8) AS head) h;

-- The view of steps, with the operation's name alone.
CREATE OR REPLACE VIEW {schema}.steps AS
SELECT r.id, r.scope, split_part(r.operation, chr(9), 1) AS operation, r.key, s.number,
    s.name AS step, s.done, s.at,
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
