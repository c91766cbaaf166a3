-- The operators' view, in which an unknown key has no end. What the table has in that column is the time
-- at which the key was given up, from which keep_unknown counts. Otherwise this is the view of
-- 0003_operations.sql.
DROP VIEW oncekey_operations;

-- One row per key in its present generation, in the terms of `oncekey show`; oncekey itself does not
-- read it. A dead owner's key is unknown as soon as its lease has ended; `absent` was freed; an expired
-- key keeps the state it had. An unknown key has no finished_at, because nobody knows of an end; one
-- that stays until somebody decides it has no expires_at. `tag` is the key's name in logs; `key` is
-- filled only if raw keys are stored. `answer` is JSON; that of an HTTP request is an object of status,
-- headers and body.
--
-- The column `operation` of the table has the operation's name and, after tabs, the surface, the route
-- and the published name of the route (see core/origin.py). The bytes of an outcome: version, kind,
-- length of the codec's name, that name, and what the codec wrote.
CREATE VIEW oncekey_operations AS
SELECT lower(hex(c.id)) AS id, lower(hex(substr(c.id, 1, 6))) AS tag, c.scope,
    substr(c.operation, 1, c.tab - 1) AS operation, c."key",
    CASE
        WHEN c.state = 1 AND NOT c.retry_safe AND c.now >= c.lease_until AND c.now < c.expiry
            THEN 'unknown'
        WHEN c.state = 0 THEN 'absent'
        WHEN c.state = 1 THEN 'pending'
        WHEN c.state = 2 THEN 'succeeded'
        WHEN c.state = 3 THEN 'failed'
        ELSE 'unknown'
    END AS state,
    c.now >= c.expiry AS expired, c.attempt, c.fence,
    strftime('%Y-%m-%dT%H:%M:%fZ', c.created_at / 1e6, 'unixepoch') AS created_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', c.lease_until / 1e6, 'unixepoch') AS lease_until,
    CASE WHEN c.state <> 4
        THEN strftime('%Y-%m-%dT%H:%M:%fZ', nullif(c.finished_at, 0) / 1e6, 'unixepoch') END
        AS finished_at,
    CASE WHEN c.expiry < 9e15 THEN strftime('%Y-%m-%dT%H:%M:%fZ', c.expiry / 1e6, 'unixepoch') END
        AS expires_at,
    CASE
        WHEN c.answer_at = 9 AND c.kind = 1 THEN 'response'
        WHEN c.kind BETWEEN 1 AND 3 THEN CASE c.kind WHEN 1 THEN 'value' WHEN 2 THEN 'error'
            ELSE 'tombstone' END
    END AS answer_kind,
    CASE
        WHEN c.answer_at = 9 THEN json_object(
            'status', json_extract(c.head, '$.status'),
            'headers', json(json_extract(c.head, '$.headers')),
            -- Bytes that are no text would make the whole row unreadable.
            'body', CASE
                WHEN NOT (c.head LIKE '%json%' OR c.head LIKE '%"text/%') THEN NULL
                WHEN json_valid(CAST(substr(c.body, 9 + c.line) AS TEXT))
                    THEN json(CAST(substr(c.body, 9 + c.line) AS TEXT))
                ELSE CAST(substr(c.body, 9 + c.line) AS TEXT)
            END)
        WHEN c.answer_at > 0 THEN CAST(substr(c.body, c.answer_at) AS TEXT)
    END AS answer,
    c.note,
    CASE WHEN c.origin = '' THEN 'function' ELSE substr(c.origin, 1, instr(c.origin, char(9)) - 1) END
        AS surface,
    substr(c.place, 1, instr(c.place || char(9), char(9)) - 1) AS route,
    substr(c.place, instr(c.place || char(9), char(9)) + 1) AS name
FROM (
    SELECT b.*, substr(b.origin, instr(b.origin, char(9)) + 1) AS place,
        CASE WHEN b.answer_at = 9 THEN instr(substr(b.body, 9), x'0A') END AS line,
        CASE WHEN b.answer_at = 9
            THEN CAST(substr(b.body, 9, instr(substr(b.body, 9), x'0A') - 1) AS TEXT) END AS head
    FROM (
        SELECT r.*, instr(r.operation || char(9), char(9)) AS tab,
            substr(r.operation, instr(r.operation || char(9), char(9)) + 1) AS origin,
            CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER) AS now,
            CASE WHEN r.state = 4 OR (r.state = 1 AND NOT r.retry_safe)
                THEN r.keep_unknown ELSE r.keep END
                + CASE r.finished_at WHEN 0 THEN r.lease_until ELSE r.finished_at END AS expiry,
            CASE substr(r.body, 1, 2) WHEN x'0101' THEN 1 WHEN x'0102' THEN 2 WHEN x'0103' THEN 3 END
                AS kind,
            CASE
                WHEN substr(r.body, 1, 1) <> x'01' THEN NULL
                WHEN substr(r.body, 3, 5) = x'046A736F6E' THEN 8  -- json
                WHEN substr(r.body, 3, 10) = x'0964617461636C617373' THEN 13  -- dataclass
                WHEN substr(r.body, 3, 9) = x'08707964616E746963' THEN 12  -- pydantic
                WHEN substr(r.body, 3, 6) = x'056874747032' THEN 9  -- http2
            END AS answer_at
        FROM oncekey_records r
    ) b
) c;
