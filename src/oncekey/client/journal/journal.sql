-- Every query of the client's journal. Times are microseconds since 1970.

-- name: create_entries
CREATE TABLE IF NOT EXISTS entries (
    key TEXT NOT NULL PRIMARY KEY,
    digest BLOB NOT NULL,        -- of account, method, URL and body
    account TEXT NOT NULL,       -- the account on whose behalf it was sent
    intent TEXT,                 -- the caller's name for the request, if it has one
    answered INTEGER NOT NULL,   -- 1: carried out; kept because the caller may not know it yet
    created_at INTEGER NOT NULL,
    touched_at INTEGER NOT NULL, -- when it was last reused or answered; its age counts from here
    UNIQUE (account, intent)
) WITHOUT ROWID;

-- name: create_by_digest
CREATE INDEX IF NOT EXISTS entries_by_digest ON entries (digest, created_at);

-- name: create_by_age
CREATE INDEX IF NOT EXISTS entries_by_age ON entries (touched_at);

-- It makes the count of the open entries, before each request, independent of the answered ones.
-- name: create_open
CREATE INDEX IF NOT EXISTS entries_open ON entries (answered) WHERE answered = 0;

-- name: count_tables
SELECT count(*) FROM sqlite_schema;

-- name: count_open
SELECT count(*) FROM entries WHERE answered = 0;

-- name: count_all
SELECT count(*) FROM entries;

-- name: find_by_key
SELECT key, digest FROM entries WHERE key = ?;

-- name: find_by_intent
SELECT key, digest FROM entries WHERE account = ? AND intent = ?;

-- name: find_by_digest
SELECT key, digest FROM entries WHERE digest = ? AND intent IS NULL ORDER BY created_at, key;

-- name: find_old
SELECT key FROM entries WHERE touched_at <= ?;

-- name: find_oldest_answered
SELECT key FROM entries WHERE answered = 1 ORDER BY touched_at, key LIMIT ?;

-- name: insert_entry
INSERT INTO entries (key, digest, account, intent, answered, created_at, touched_at)
VALUES (?, ?, ?, ?, 0, ?, ?);

-- name: touch
UPDATE entries SET touched_at = ? WHERE key = ?;

-- name: mark_answered
UPDATE entries SET answered = 1, touched_at = ? WHERE key = ? AND intent IS NOT NULL;

-- An entry without an intent would never be found again.
-- name: delete_without_intent
DELETE FROM entries WHERE key = ? AND intent IS NULL;

-- An entry that is marked as answered stays so, whatever a later request was answered.
-- name: delete_unanswered
DELETE FROM entries WHERE key = ? AND answered = 0;

-- name: delete_entry
DELETE FROM entries WHERE key = ?;
