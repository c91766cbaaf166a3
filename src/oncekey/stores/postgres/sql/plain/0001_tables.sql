-- The tables, with one row per key. Times are microseconds of the server's clock.
--
-- Wide columns come first, so that no space is lost to padding. Every page has room for a second version
-- of each of its rows, which with an answer of some hundred bytes is three times as large (fillfactor: a
-- batch finishes all of them at once), and no index is on a column that a finish changes. So a finish is
-- a heap-only update and changes no index.
-- sweep_at is when the sweeper looks at the record: never after its audit has ended, unless its owner
-- died; a record that is not garbage then is postponed.
-- revision counts the writes of one fence: (fence, revision) identifies one version of one row.
CREATE TABLE {schema}.records (
    id          uuid     NOT NULL,
    owner       uuid     NOT NULL,
    fence       bigint   NOT NULL,
    created_at  bigint   NOT NULL,
    lease_until bigint   NOT NULL,
    finished_at bigint   NOT NULL,
    keep        bigint   NOT NULL,
    audit       bigint   NOT NULL,
    keep_unknown bigint  NOT NULL,
    sweep_at    bigint   NOT NULL,
    attempt     integer  NOT NULL,
    revision    integer  NOT NULL,
    state       smallint NOT NULL CHECK (state BETWEEN 0 AND 4),
    slot        smallint NOT NULL,
    retry_safe  boolean  NOT NULL,
    fingerprint bytea    NOT NULL,
    scope       text     NOT NULL,
    operation   text     NOT NULL,
    key         text     NOT NULL,
    steps       bytea    NOT NULL,
    body        bytea    NOT NULL,
    note        text     NOT NULL,
    PRIMARY KEY (id)
) WITH (
    fillfactor = 25,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 1
);
CREATE INDEX records_sweep ON {schema}.records (sweep_at);

-- Past generations until their audit ends. Their rows are written once and never updated.
CREATE TABLE {schema}.history (
    LIKE {schema}.records,
    PRIMARY KEY (id, fence)
) WITH (autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX history_sweep ON {schema}.history (sweep_at);

-- Settings; the elected token, since when and until when; and 'deleted-fences', the highest fence of a
-- deleted record (in until). The fence of a new record is above it, whatever the clock says.
CREATE TABLE {schema}.meta (
    name  text   PRIMARY KEY,
    value bytea  NOT NULL,
    since bigint NOT NULL DEFAULT 0,
    until bigint NOT NULL DEFAULT 0
);
INSERT INTO {schema}.meta (name, value) VALUES ('retention', 'plain');
-- The identity of this store, different from every other store's; see place_1.
INSERT INTO {schema}.meta (name, value) VALUES ('identity', uuid_send(gen_random_uuid()));
