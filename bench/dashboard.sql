-- Rows as an SQLite store leaves them, so many of them, a microsecond apart and up to a minute ago.

-- name: fill
INSERT INTO oncekey_records (
    id, state, fingerprint, owner, fence, attempt, retry_safe, created_at, lease_until, finished_at,
    keep, audit, scope, operation, "key", keep_unknown, sweep_at, steps, note, body)
WITH RECURSIVE counted (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counted WHERE n < :rows)
SELECT randomblob(16), 2, zeroblob(33), randomblob(16), :now - 60000000 - n, 1, 0,
       :now - 60000000 - n, :now - 30000000, :now - 60000000, 86400000000, 604800000000, '', 'charge',
       '', 31622400000000000, :now + 691230000000, x'', '', x'0101046a736f6e7b226964223a2263685f31227d'
FROM counted;

-- name: by_id
SELECT * FROM oncekey_records WHERE id = ?;

-- name: postgres_by_id
SELECT * FROM oncekey.records WHERE id = $1;
