-- Every query of the SQLite store.
--
-- Results are expressions and never bare columns: `+x` has no declared type, so the converters of a
-- caller's connection (detect_types) do not apply, and text is returned as bytes, so its text_factory
-- does not apply either. /*ids*/ stands for a list of placeholders. Placeholders have no numbers,
-- because Python 3.12 warns about those.

-- name: select_records
SELECT +id, +state, +fingerprint, +owner, +fence, +attempt, +retry_safe, +created_at,
       +lease_until, +finished_at, +keep, +audit, CAST(scope AS BLOB), CAST(operation AS BLOB),
       CAST("key" AS BLOB), +steps, +body, CAST(note AS BLOB), +keep_unknown
FROM oncekey_records
WHERE id IN (/*ids*/);

-- name: select_history
SELECT +id, +state, +fingerprint, +owner, +fence, +attempt, +retry_safe, +created_at,
       +lease_until, +finished_at, +keep, +audit, CAST(scope AS BLOB), CAST(operation AS BLOB),
       CAST("key" AS BLOB), +steps, +body, CAST(note AS BLOB), +keep_unknown
FROM oncekey_history
WHERE id = ?
ORDER BY fence;

-- The columns of select_records; those that the sweeper does not need are empty.
-- name: select_due
SELECT +id, +state, +fingerprint, +owner, +fence, +attempt, +retry_safe, +created_at,
       +lease_until, +finished_at, +keep, +audit, x'', x'', x'', x'', x'', x'', +keep_unknown
FROM oncekey_records
WHERE sweep_at <= ?
ORDER BY sweep_at
LIMIT ?;

-- name: any_due
SELECT EXISTS (SELECT 1 FROM oncekey_records WHERE sweep_at <= ?)
    OR EXISTS (SELECT 1 FROM oncekey_history WHERE audit_until <= ?);

-- The records that have not ended and not expired (has_ended and is_expired of the state machine), by
-- fence: as many as requested, and those that share the last one's fence. Records whose steps have
-- another release's format are skipped, so that they do not hide the others.
-- name: select_unfinished
SELECT +id, +state, +fingerprint, +owner, +fence, +attempt, +retry_safe, +created_at,
       +lease_until, +finished_at, +keep, +audit, CAST(scope AS BLOB), CAST(operation AS BLOB),
       CAST("key" AS BLOB), +steps, +body, CAST(note AS BLOB), +keep_unknown
FROM oncekey_records INDEXED BY oncekey_records_unfinished
WHERE fence > ? AND (state IN (1, 4) OR (state = 0 AND steps <> x''))
  AND CASE WHEN state = 4 OR (state = 1 AND retry_safe = 0) THEN keep_unknown ELSE keep END
      + CASE finished_at WHEN 0 THEN lease_until ELSE finished_at END > ?
  AND (steps = x'' OR substr(steps, 1, 1) = x'01')
  AND fence <= coalesce((
      SELECT fence FROM oncekey_records INDEXED BY oncekey_records_unfinished
      WHERE fence > ? AND (state IN (1, 4) OR (state = 0 AND steps <> x''))
        AND CASE WHEN state = 4 OR (state = 1 AND retry_safe = 0) THEN keep_unknown ELSE keep END
      + CASE finished_at WHEN 0 THEN lease_until ELSE finished_at END > ?
        AND (steps = x'' OR substr(steps, 1, 1) = x'01')
      ORDER BY fence LIMIT 1 OFFSET ?
  ), 9223372036854775807)
ORDER BY fence, id;

-- name: select_ended
SELECT +id, +fence FROM oncekey_history WHERE audit_until <= ? ORDER BY audit_until LIMIT ?;

-- name: insert_record
INSERT INTO oncekey_records (
    id, state, fingerprint, owner, fence, attempt, retry_safe, created_at, lease_until,
    finished_at, keep, audit, scope, operation, "key", steps, body, note, keep_unknown, sweep_at
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- A first claim, which writes nothing if the key exists by now.
-- name: insert_new
INSERT INTO oncekey_records (
    id, state, fingerprint, owner, fence, attempt, retry_safe, created_at, lease_until,
    finished_at, keep, audit, scope, operation, "key", steps, body, note, keep_unknown, sweep_at
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO NOTHING;

-- A finish by compare-and-set: no row changes unless this owner still holds the key (state 1). The last
-- term skips records that a sweeper has postponed, because those also need an earlier sweep_at.
-- name: finish_held
UPDATE oncekey_records SET state = ?, finished_at = ?, body = ?
WHERE id = ? AND owner = ? AND fence = ? AND state = 1
  AND sweep_at <= lease_until + keep + audit;

-- name: update_claimed
UPDATE oncekey_records SET
    state = ?, fingerprint = ?, owner = ?, fence = ?, attempt = ?, retry_safe = ?,
    created_at = ?, lease_until = ?, finished_at = ?, keep = ?, audit = ?, scope = ?,
    operation = ?, "key" = ?, steps = ?, body = ?, note = ?, keep_unknown = ?, sweep_at = ?
WHERE id = ?;

-- Ends a record that finish_held did not: the columns of update_held, and when to sweep it.
-- name: update_ended
UPDATE oncekey_records SET
    state = ?, lease_until = ?, finished_at = ?, steps = ?, body = ?, note = ?, sweep_at = ?
WHERE id = ?;

-- The columns that a command other than a claim can change while the record is pending. None of them
-- is indexed; state and steps decide whether the row is in the index of unfinished records.
-- name: update_held
UPDATE oncekey_records SET
    state = ?, lease_until = ?, finished_at = ?, steps = ?, body = ?, note = ?
WHERE id = ?;

-- name: insert_history
INSERT OR REPLACE INTO oncekey_history (
    id, state, fingerprint, owner, fence, attempt, retry_safe, created_at, lease_until,
    finished_at, keep, audit, scope, operation, "key", steps, body, note, keep_unknown, audit_until
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: delete_record
DELETE FROM oncekey_records WHERE id = ?;

-- name: delete_history
DELETE FROM oncekey_history WHERE id = ? AND fence = ?;

-- name: postpone
UPDATE oncekey_records SET sweep_at = ? WHERE id = ?;

-- name: select_meta
SELECT +value FROM oncekey_meta WHERE name = ?;

-- name: insert_meta
INSERT INTO oncekey_meta (name, value) VALUES (?, ?);

-- name: upsert_meta
INSERT INTO oncekey_meta (name, value) VALUES (?, ?)
ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- Writes nothing, but is a write for SQLite: it takes the write lock before anything is read, so a
-- deferred transaction waits for the lock here instead of failing later.
-- name: lock
DELETE FROM oncekey_meta WHERE 0;

-- name: connection
SELECT CAST(file AS BLOB), (SELECT synchronous FROM pragma_synchronous)
FROM pragma_database_list WHERE name = 'main';

-- name: encoding
SELECT encoding FROM pragma_encoding;

-- name: columns
SELECT CAST(m.name AS BLOB), CAST(p.name AS BLOB)
FROM sqlite_master AS m, pragma_table_info(m.name) AS p
WHERE m.type IN ('table', 'view') AND m.name LIKE 'oncekey!_%' ESCAPE '!';

-- name: create_migrations
CREATE TABLE IF NOT EXISTS oncekey_migrations (
    version INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    applied_at INTEGER NOT NULL
);

-- name: select_migrations
SELECT +version FROM oncekey_migrations ORDER BY version;

-- name: insert_migration
INSERT INTO oncekey_migrations (version, name, applied_at) VALUES (?, ?, ?);

-- The records among the next ones by claim that match: Query.matches, word for word. Every row has the
-- last record that was looked at, how many there were, and the record's own place among them; without a
-- match there is one row, whose id is null. Steps are left out, and bodies are cut. Where only unfinished records can match, the clause
-- below replaces WHERE /* all */, and SQLite walks through the index that has no others.
-- name: search
WITH walked AS MATERIALIZED (
    SELECT n, fence, id, row_number() OVER (ORDER BY fence DESC, id DESC) AS place FROM (
        SELECT n, fence, id FROM oncekey_records
        WHERE /* all */ fence <= :fence AND (fence < :fence OR id < :id)
        ORDER BY fence DESC, id DESC LIMIT :looked_at
    )
), last AS (
    SELECT count(*) AS looked_at, min(fence) AS fence,
        (SELECT w.id FROM walked w ORDER BY w.fence, w.id LIMIT 1) AS id
    FROM walked
), found AS (
    SELECT r.*, w.place FROM walked w CROSS JOIN oncekey_records r ON r.n = w.n
    WHERE (
        CASE WHEN :now >= CASE WHEN r.state = 4 OR (r.state = 1 AND r.retry_safe = 0)
                THEN r.keep_unknown ELSE r.keep END
                + CASE r.finished_at WHEN 0 THEN r.lease_until ELSE r.finished_at END
            THEN CASE WHEN :expired THEN r.state ELSE -1 END
            WHEN r.state = 1 AND r.retry_safe = 0 AND :now >= r.lease_until THEN 4
            ELSE r.state
        END
    ) IN (SELECT value FROM json_each(:states))
        AND (r.state <> 0 OR r.steps <> x'')
        AND (:scope IS NULL OR r.scope = :scope)
        AND (:operation IS NULL OR r.operation = :operation
            OR substr(r.operation, 1, length(:operation) + 1) = :operation || char(9))
        AND (:route IS NULL OR :route = '' OR substr(r.operation,
            instr(r.operation, char(9)) + 1
            + instr(substr(r.operation, instr(r.operation, char(9)) + 1), char(9)),
            length(:route)) = :route AND instr(r.operation, char(9)) > 0)
        AND (:key IS NULL OR r."key" = :key)
    ORDER BY r.fence DESC, r.id DESC LIMIT :limit + 1
)
SELECT +f.id, +f.state, +f.fingerprint, +f.owner, +f.fence, +f.attempt, +f.retry_safe, +f.created_at,
       +f.lease_until, +f.finished_at, +f.keep, +f.audit, CAST(f.scope AS BLOB),
       CAST(f.operation AS BLOB), CAST(f."key" AS BLOB), x'', coalesce(substr(f.body, 1, :head), x''),
       CAST(f.note AS BLOB), +f.keep_unknown, l.looked_at, l.fence, l.id, f.place
FROM last l LEFT JOIN found f ON 1;

-- name: search_unfinished
INDEXED BY oncekey_records_unfinished WHERE (state IN (1, 4) OR (state = 0 AND steps <> x'')) AND

-- The records whose ids are in a range, whatever else they are.
-- name: search_ids
SELECT +id, +state, +fingerprint, +owner, +fence, +attempt, +retry_safe, +created_at,
       +lease_until, +finished_at, +keep, +audit, CAST(scope AS BLOB), CAST(operation AS BLOB),
       CAST("key" AS BLOB), +steps, coalesce(substr(body, 1, :head), x''), CAST(note AS BLOB), +keep_unknown
FROM oncekey_records WHERE id BETWEEN :first AND :last ORDER BY id LIMIT :limit;

-- Rows are numbered when they are inserted and swept from the oldest on, so the numbers estimate them.
-- name: measure
-- Few records are counted. Of many the number is estimated: their numbers `n` grow with every insert, and
-- records that ended are gone, so of the newest 64 numbers all are looked up, of the 128 before them every
-- second one, and so on.
WITH RECURSIVE part(top, step) AS (
    SELECT max(n), 1 FROM oncekey_records
    UNION ALL
    SELECT top - 64 * step, 2 * step FROM part
    WHERE top - 64 * step >= (SELECT min(n) FROM oncekey_records)
), probe(number) AS (
    SELECT 0 UNION ALL SELECT number + 1 FROM probe WHERE number < 63
), few(records) AS (
    SELECT count(*) FROM (SELECT 1 FROM oncekey_records WHERE fence >= 0 LIMIT :most)
)
SELECT
    CASE WHEN few.records < :most THEN few.records ELSE max(few.records, (
        SELECT sum(step) FROM part, probe
        WHERE EXISTS (SELECT 1 FROM oncekey_records WHERE n = top - number * step))) END,
    (SELECT page_count FROM pragma_page_count) * (SELECT page_size FROM pragma_page_size),
    (SELECT count(*) FROM (SELECT 1 FROM oncekey_records WHERE sweep_at <= :now LIMIT :most)),
    (SELECT coalesce(min(sweep_at), 0) FROM oncekey_records WHERE sweep_at <= :now),
    (SELECT count(*) FROM (SELECT 1 FROM oncekey_records WHERE fence > :since LIMIT :most))
FROM few;
