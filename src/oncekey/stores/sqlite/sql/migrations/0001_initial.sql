-- One row per key in its present generation. It is a rowid table with the id as a column: rows are
-- appended densely, and a finish changes neither index.
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
    -- When to check whether the record is garbage. Written by the claim, by the sweeper if it came
    -- too early, and by the command that ends a postponed record.
    sweep_at INTEGER NOT NULL,
    steps BLOB NOT NULL,
    note TEXT NOT NULL,
    body BLOB NOT NULL
);

CREATE INDEX oncekey_records_sweep ON oncekey_records (sweep_at);

-- Past generations of keys, which can be read until their audit window ends.
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
