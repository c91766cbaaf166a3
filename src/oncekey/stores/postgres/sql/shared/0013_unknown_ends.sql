-- The operators' view of operations, in which an unknown key has no end.
-- compatible: 3
--
-- What the table has in that column is the time at which the key was given up, from which keep_unknown
-- counts. Nobody knows of an end, and `get` tells none either.

-- The view of 0008_operators.sql, replaced in place; see there and in 0006_step_facts.sql.
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
    'epoch'::timestamptz + interval '1 microsecond'
        * CASE WHEN r.state <> 4 THEN nullif(r.finished_at, 0) END AS finished_at,
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
