-- One row per key in its present generation. A rowid table with the id beside it: rows append
-- densely, and finishing one touches neither index.
CREATE TABLE oncekey_records (
    n INTEGER PRIMARY KEY,
    id BLOB NOT NULL UNIQUE,
    state INTEGER NOT NULL,
    fingerprint BLOB NOT NULL,
    owner BLOB NOT NULL,
    fence INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    retry_safe INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    lease_until INTEGER NOT NULL,
    finished_at INTEGER NOT NULL,
    keep INTEGER NOT NULL,
    audit INTEGER NOT NULL,
    scope TEXT NOT NULL,
    operation TEXT NOT NULL,
    "key" TEXT NOT NULL,
    keep_unknown INTEGER NOT NULL,
    -- When to look whether the record is garbage. Written by the claim, by the sweeper where it came
    -- too early, and by what ends a record that had been put off.
    sweep_at INTEGER NOT NULL,
    steps BLOB NOT NULL,
    note TEXT NOT NULL,
    body BLOB NOT NULL
);

CREATE INDEX oncekey_records_sweep ON oncekey_records (sweep_at);

-- Past generations of keys, readable until their audit window ends.
CREATE TABLE oncekey_history (
    id BLOB NOT NULL,
    fence INTEGER NOT NULL,
    state INTEGER NOT NULL,
    fingerprint BLOB NOT NULL,
    owner BLOB NOT NULL,
    attempt INTEGER NOT NULL,
    retry_safe INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    lease_until INTEGER NOT NULL,
    finished_at INTEGER NOT NULL,
    keep INTEGER NOT NULL,
    audit INTEGER NOT NULL,
    scope TEXT NOT NULL,
    operation TEXT NOT NULL,
    "key" TEXT NOT NULL,
    keep_unknown INTEGER NOT NULL,
    audit_until INTEGER NOT NULL,
    steps BLOB NOT NULL,
    note TEXT NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (id, fence)
);

CREATE INDEX oncekey_history_audit ON oncekey_history (audit_until);

CREATE TABLE oncekey_meta (
    name TEXT PRIMARY KEY,
    value BLOB NOT NULL
) WITHOUT ROWID;
