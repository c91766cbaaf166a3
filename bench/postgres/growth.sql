-- Rows as the store leaves them, by the million: so many days ago, so many of them. They are kept for
-- a day and audited for seven more, so those of ten days ago are the sweeper's.

-- name: fill
INSERT INTO oncekey.records (
    id, owner, fence, created_at, lease_until, finished_at, keep, audit, keep_unknown, sweep_at,
    attempt, revision, state, slot, retry_safe, fingerprint, scope, operation, key, steps, body, note)
SELECT gen_random_uuid(), gen_random_uuid(), at, at, at + 30000000, at, 86400000000, 604800000000,
       31622400000000000, at + 691230000000, 1, 1, 2, 0, false, decode('01' || repeat('5a', 32), 'hex'),
       '', 'charge', '', '', '\x0101046a736f6e7b226964223a2263685f31227d'::bytea, ''
FROM (
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint - %s * 86400000000 + n AS at
    FROM generate_series(1, %s) AS n
) AS finished;

-- name: indexes
SELECT conname IS NOT NULL, coalesce(conname, relname), coalesce(
    pg_get_constraintdef(pg_constraint.oid), pg_get_indexdef(indexrelid))
FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
LEFT JOIN pg_constraint ON conindid = indexrelid AND contype = 'p'
WHERE indrelid = 'oncekey.records'::regclass;
