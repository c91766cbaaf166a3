-- Every query of the client's journal. Times are microseconds since 1970.

-- name: create_entries
CREATE TABLE IF NOT EXISTS entries (
    key TEXT NOT NULL PRIMARY KEY,
    digest BLOB NOT NULL,      -- of method, URL and body
    intent TEXT UNIQUE,        -- the caller's name for it, if it has one
    answered INTEGER NOT NULL, -- 1: it was done; kept because the caller may not know that yet
    created_at INTEGER NOT NULL
) WITHOUT ROWID;

-- name: create_by_digest
CREATE INDEX IF NOT EXISTS entries_by_digest ON entries (digest, created_at);

-- name: create_by_age
CREATE INDEX IF NOT EXISTS entries_by_age ON entries (created_at);

-- name: count_tables
SELECT count(*) FROM sqlite_schema;

-- name: drop_old
DELETE FROM entries WHERE created_at <= ?;

-- name: count_open
SELECT count(*) FROM entries WHERE answered = 0;

-- name: find_by_key
SELECT key, digest FROM entries WHERE key = ?;

-- name: find_by_intent
SELECT key, digest FROM entries WHERE intent = ?;

-- name: find_by_digest
SELECT key, digest FROM entries WHERE digest = ? AND intent IS NULL ORDER BY created_at, key;

-- name: insert_entry
INSERT INTO entries (key, digest, intent, answered, created_at) VALUES (?, ?, ?, 0, ?);

-- name: mark_answered
UPDATE entries SET answered = 1 WHERE key = ?;

-- name: delete_entry
DELETE FROM entries WHERE key = ?;

-- One that was done stays done, whatever was answered when it was asked for again.
-- name: cross_out
DELETE FROM entries WHERE key = ? AND answered = 0;
