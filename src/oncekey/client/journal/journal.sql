-- Every query of the client's journal. Times are microseconds since 1970.

-- name: create_entries
CREATE TABLE IF NOT EXISTS entries (
    key TEXT NOT NULL PRIMARY KEY,
    digest BLOB NOT NULL,        -- of account, method, URL and body
    account TEXT NOT NULL,       -- on whose behalf it was sent
    intent TEXT,                 -- the caller's name for it, if it has one
    answered INTEGER NOT NULL,   -- 1: it was done; kept because the caller may not know that yet
    created_at INTEGER NOT NULL,
    touched_at INTEGER NOT NULL, -- when it was last taken up or answered; its age counts from here
    UNIQUE (account, intent)
) WITHOUT ROWID;

-- name: create_by_digest
CREATE INDEX IF NOT EXISTS entries_by_digest ON entries (digest, created_at);

-- name: create_by_age
CREATE INDEX IF NOT EXISTS entries_by_age ON entries (touched_at);

-- So that counting the open ones, before each request, does not read all that are answered.
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

-- Without a name nobody would find it again.
-- name: delete_unnamed
DELETE FROM entries WHERE key = ? AND intent IS NULL;

-- One that was done stays done, whatever was answered when it was asked for again.
-- name: delete_unanswered
DELETE FROM entries WHERE key = ? AND answered = 0;

-- name: delete_entry
DELETE FROM entries WHERE key = ?;
