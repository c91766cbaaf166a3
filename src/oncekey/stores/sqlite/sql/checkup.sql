-- What `oncekey doctor` reads of a file. Every query is bounded by an index or by a limit.

-- name: objects
SELECT type || ' ' || name, coalesce(sql, '') FROM sqlite_master
WHERE tbl_name LIKE 'oncekey!_%' ESCAPE '!'
ORDER BY 1;

-- name: versions
SELECT version FROM oncekey_migrations ORDER BY version;

-- name: encoding
PRAGMA encoding;

-- name: journal_mode
PRAGMA journal_mode;

-- name: quick_check
PRAGMA quick_check(1);

-- name: overdue
SELECT count(*), coalesce(min(due), 0) FROM (
    SELECT * FROM (SELECT sweep_at AS due FROM oncekey_records WHERE sweep_at <= ?
                   ORDER BY sweep_at LIMIT ?)
    UNION ALL
    SELECT * FROM (SELECT audit_until FROM oncekey_history WHERE audit_until <= ?
                   ORDER BY audit_until LIMIT ?)
);

-- The newest keys are those with the highest row numbers. A record whose lease ends with it was decided
-- by somebody else than its owner, perhaps days later.
-- name: runs
SELECT operation, finished_at - created_at, lease_until - finished_at, keep
FROM (SELECT * FROM oncekey_records ORDER BY n DESC LIMIT ?)
WHERE state IN (2, 3) AND attempt = 1 AND lease_until <> finished_at;
