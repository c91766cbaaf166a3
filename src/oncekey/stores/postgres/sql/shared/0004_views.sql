-- The operators' views: the state of every key, and its steps with their results.
-- compatible: 3
--
-- oncekey itself does not read these views; they are for people, reports and dashboards. To let a
-- role read them, without access to the tables and without the right to change anything:
--
--     GRANT USAGE ON SCHEMA {schema} TO support;
--     GRANT SELECT ON {schema}.operations, {schema}.steps TO support;
--
-- Every role may execute the functions below, unless that right was revoked from PUBLIC:
--
--     GRANT EXECUTE ON FUNCTION {schema}.answer_1(bytea), {schema}.steps_1(bytea) TO support;
--
-- Answers may hold confidential data. If so, grant single columns only:
-- GRANT SELECT (id, tag, scope, operation, state, created_at) ON {schema}.operations TO support;
--
-- A key is found fast by its id. Any other query reads the whole table, and while it runs, the ring
-- cannot empty a slot: keep such queries short.

-- An outcome as JSON text; null if it is not JSON, not text at all, or was written by another release.
-- Its bytes: version, kind (value, error, tombstone), length of the codec's name, that name, the body.
CREATE FUNCTION {schema}.answer_1(p_body bytea) RETURNS text
LANGUAGE plpgsql STABLE STRICT AS $answer$
DECLARE
    v CONSTANT bytea := p_body || ''::bytea;  -- decompressed once, not for every byte that is read
    v_text text;
BEGIN
    IF length(v) < 3 OR get_byte(v, 0) <> 1 OR get_byte(v, 1) NOT BETWEEN 1 AND 3 THEN
        RETURN NULL;
    END IF;
    IF encode(substring(v FROM 4 FOR get_byte(v, 2)), 'escape')
        NOT IN ('json', 'dataclass', 'pydantic')
    THEN
        RETURN NULL;  -- written by a codec of the user's: its format is unknown
    END IF;
    v_text := convert_from(substring(v FROM 4 + get_byte(v, 2)), 'UTF8');
    PERFORM v_text::json;
    RETURN v_text;
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
    RETURN NULL;
END
$answer$;

-- The steps of one record as rows. A row without a name stands for bytes that cannot be decoded.
-- The bytes: version, then for each step a head (u16 length of the name, u8 done, i64 time, u32 length
-- of the body), its name and its body.
CREATE FUNCTION {schema}.steps_1(p_steps bytea)
RETURNS TABLE (number integer, name text, done boolean, at timestamptz, body bytea)
LANGUAGE plpgsql STABLE STRICT ROWS 5 AS $steps$
DECLARE
    v CONSTANT bytea := p_steps || ''::bytea;
    v_end CONSTANT integer := length(v);
    v_head integer := 1;  -- the offset of the next step
    v_body_from integer;
    v_next bigint;
BEGIN
    number := 1;
    IF v_end = 0 THEN
        RETURN;
    END IF;
    IF get_byte(v, 0) <> 1 THEN
        RAISE data_exception;
    END IF;
    WHILE v_head < v_end LOOP
        IF v_head + 15 > v_end THEN
            RAISE data_exception;
        END IF;
        v_body_from := v_head + 15 + get_byte(v, v_head) * 256 + get_byte(v, v_head + 1);
        v_next := v_body_from
            + ('x' || encode(substring(v FROM v_head + 12 FOR 4), 'hex'))::bit(32)::bigint;
        IF v_next > v_end THEN
            RAISE data_exception;
        END IF;
        name := convert_from(
            substring(v FROM v_head + 16 FOR v_body_from - v_head - 15), 'UTF8');
        done := get_byte(v, v_head + 2) <> 0;
        at := 'epoch'::timestamptz + interval '1 microsecond'
            * ('x' || encode(substring(v FROM v_head + 4 FOR 8), 'hex'))::bit(64)::bigint;
        body := substring(v FROM v_body_from + 1 FOR v_next::integer - v_body_from);
        RETURN NEXT;
        number := number + 1;
        v_head := v_next;
    END LOOP;
EXCEPTION WHEN data_exception THEN
    name := NULL;
    done := NULL;
    at := NULL;
    body := NULL;
    RETURN NEXT;
END
$steps$;

-- One row per key in its present generation, in the terms of `oncekey show`. A dead owner's key is
-- unknown as soon as its lease has ended, even if nobody has read it since; `absent` was freed; an
-- expired key keeps the state it had; a key that stays until somebody decides it has no expires_at.
-- `tag` is the key's name in logs; `key` is filled only if raw keys are stored.
CREATE VIEW {schema}.operations AS
SELECT r.id, left(replace(r.id::text, '-', ''), 12) AS tag, r.scope, r.operation, r.key,
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
    CASE WHEN length(r.body) < 3 THEN NULL ELSE
        CASE get_byte(h.head, 0) WHEN 1
            THEN (ARRAY['value', 'error', 'tombstone'])[get_byte(h.head, 1)] END
    END AS answer_kind,
    {schema}.answer_1(r.body) AS answer, r.note
FROM {schema}.records r
CROSS JOIN (SELECT (extract(epoch FROM statement_timestamp()) * 1000000)::bigint AS us) n
CROSS JOIN LATERAL (
    SELECT {schema}.expiry_1(r) AS us, CASE WHEN r.keep_unknown < {forever}
        OR NOT (r.state = 4 OR (r.state = 1 AND NOT r.retry_safe)) THEN {schema}.expiry_1(r) END AS shown
) e
CROSS JOIN LATERAL (SELECT substring(r.body FROM 1 FOR 3) AS head) h;

-- One row per step, in order. An unfinished step may have reached the other service: `intent` is the
-- child key it was sent with, under which to ask there.
CREATE VIEW {schema}.steps AS
SELECT r.id, r.scope, r.operation, r.key, s.number, s.name AS step, s.done, s.at,
    CASE WHEN s.done THEN {schema}.answer_1(s.body) END AS result,
    CASE WHEN NOT s.done THEN encode(s.body, 'escape') END AS intent
FROM {schema}.records r CROSS JOIN LATERAL {schema}.steps_1(r.steps) s
WHERE r.steps <> ''::bytea;
