-- The outbox: made by create_outbox, not by the store's migrations, because only some need it. Lists of
-- numbers and ids come as JSON. No RETURNING and no FILTER: some hosts have an SQLite from before those.

-- One row per message, deleted once it is published (or `keep` later). Times are microseconds. due_at is
-- when a publisher may take the row; while a publisher has it, that is when its lease ends. state: 0
-- waits, 1 is parked, 2 is published. AUTOINCREMENT: a number is never given twice.
-- name: create_table
CREATE TABLE IF NOT EXISTS oncekey_outbox (
    seq          INTEGER PRIMARY KEY AUTOINCREMENT,
    due_at       INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    published_at INTEGER NOT NULL DEFAULT 0,
    fence        INTEGER NOT NULL,
    owner        BLOB,
    tries        INTEGER NOT NULL DEFAULT 0,
    refusals     INTEGER NOT NULL DEFAULT 0,
    state        INTEGER NOT NULL DEFAULT 0,
    id           TEXT NOT NULL UNIQUE,
    queue        TEXT NOT NULL,
    order_group  TEXT,
    headers      TEXT NOT NULL,
    body         BLOB NOT NULL,
    error        TEXT NOT NULL DEFAULT ''
);

-- name: create_due
CREATE INDEX IF NOT EXISTS oncekey_outbox_due ON oncekey_outbox (due_at, seq) WHERE state = 0;

-- name: create_groups
CREATE INDEX IF NOT EXISTS oncekey_outbox_groups ON oncekey_outbox (queue, order_group, seq)
    WHERE order_group IS NOT NULL AND state < 2;

-- name: create_parked
CREATE INDEX IF NOT EXISTS oncekey_outbox_parked ON oncekey_outbox (seq) WHERE state = 1;

-- name: create_published
CREATE INDEX IF NOT EXISTS oncekey_outbox_published ON oncekey_outbox (published_at) WHERE state = 2;

-- Runs on a caller's connection, so its result is an expression (see queries.sql).
-- name: compare
SELECT fence <> :fence OR (queue = :queue AND order_group IS :order_group AND headers = :headers
    AND body = :body)
FROM oncekey_outbox WHERE id = :id;

-- name: add
INSERT INTO oncekey_outbox (due_at, created_at, fence, id, queue, order_group, headers, body)
VALUES (:now, :now, :fence, :id, :queue, :order_group, :headers, :body);

-- name: due
SELECT seq, queue, order_group, length(body) FROM oncekey_outbox
WHERE state = 0 AND due_at <= :now ORDER BY due_at, seq LIMIT :most;

-- The first row of a group that is not among those that are due: it holds back the ones behind it.
-- name: gap
SELECT seq, state, due_at FROM oncekey_outbox
WHERE queue = :queue AND order_group = :order_group AND state < 2
    AND seq NOT IN (SELECT value FROM json_each(:due))
ORDER BY seq LIMIT 1;

-- The owner of a lease that is over goes: a row with an owner is not made due by others.
-- name: put_off
UPDATE oncekey_outbox SET due_at = :until, owner = NULL WHERE seq IN (SELECT value FROM json_each(:seqs));

-- name: take
UPDATE oncekey_outbox SET owner = :owner, due_at = :until, tries = tries + 1
WHERE seq IN (SELECT value FROM json_each(:seqs));

-- name: taken
SELECT seq, id, queue, order_group, headers, body, tries, refusals, created_at, error
FROM oncekey_outbox WHERE seq IN (SELECT value FROM json_each(:seqs)) ORDER BY seq;

-- name: fail
UPDATE oncekey_outbox SET owner = NULL, due_at = :until, error = :error,
    refusals = refusals + :counts, state = :park
WHERE seq = :seq AND owner = :owner AND state = 0;

-- name: return_unsent
UPDATE oncekey_outbox SET owner = NULL, due_at = created_at, tries = tries - 1
WHERE seq IN (SELECT value FROM json_each(:seqs)) AND owner = :owner AND state = 0;

-- The groups of the published rows, unless a row of the group has failed.
-- name: advanced_groups
SELECT queue, order_group FROM oncekey_outbox
WHERE seq IN (SELECT value FROM json_each(:published)) AND owner = :owner AND order_group IS NOT NULL
EXCEPT
SELECT queue, order_group FROM oncekey_outbox WHERE seq IN (SELECT value FROM json_each(:failed));

-- name: keep_published
UPDATE oncekey_outbox SET state = 2, published_at = :now, owner = NULL, error = ''
WHERE seq IN (SELECT value FROM json_each(:published)) AND owner = :owner AND state = 0;

-- name: delete_published
DELETE FROM oncekey_outbox
WHERE seq IN (SELECT value FROM json_each(:published)) AND owner = :owner AND state = 0;

-- name: changes
SELECT changes();

-- As of their own time, so that they go before those that were added after them.
-- name: wake
UPDATE oncekey_outbox SET due_at = created_at
WHERE state = 0 AND owner IS NULL AND due_at > :now AND seq IN (
    SELECT seq FROM oncekey_outbox
    WHERE queue = :queue AND order_group = :order_group AND state < 2 ORDER BY seq LIMIT :most);

-- name: purge
DELETE FROM oncekey_outbox WHERE seq IN (
    SELECT seq FROM oncekey_outbox WHERE state = 2 AND published_at <= :before
    ORDER BY published_at LIMIT :most);

-- name: measure
SELECT coalesce(sum(state = 0), 0), coalesce(sum(state = 0 AND owner IS NOT NULL AND due_at > :now), 0),
    coalesce(sum(state = 1), 0), coalesce(sum(state = 2), 0),
    coalesce(:now - min(CASE state WHEN 0 THEN created_at END), 0)
FROM oncekey_outbox;

-- name: parked
SELECT seq, id, queue, order_group, headers, body, tries, refusals, created_at, error
FROM oncekey_outbox WHERE state = 1 ORDER BY seq LIMIT :most;

-- name: release
UPDATE oncekey_outbox SET state = 0, refusals = 0, tries = 0, owner = NULL, due_at = created_at
WHERE state = 1 AND id IN (SELECT value FROM json_each(:ids));

-- Those that wait behind a message that is to be discarded are due now.
-- name: wake_all
UPDATE oncekey_outbox SET due_at = created_at
WHERE state = 0 AND owner IS NULL AND (queue, order_group) IN (
    SELECT queue, order_group FROM oncekey_outbox
    WHERE state = 1 AND id IN (SELECT value FROM json_each(:ids)));

-- name: discard
DELETE FROM oncekey_outbox WHERE state = 1 AND id IN (SELECT value FROM json_each(:ids));
