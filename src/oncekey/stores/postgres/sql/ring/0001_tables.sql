-- The tables for retention="ring": {slots} fixed partitions, filled one after the other and emptied by
-- TRUNCATE. An index cannot make a key unique across them: an insert holds the key's advisory lock and
-- has read again since it took the lock (see 0002_functions.sql).
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
    PRIMARY KEY (id, slot)
) PARTITION BY LIST (slot);
CREATE INDEX records_sweep ON {schema}.records (sweep_at);

DO $make$
BEGIN
    FOR n IN 0 .. {slots} - 1 LOOP
        EXECUTE format(
            'CREATE TABLE {schema}.records_%s PARTITION OF {schema}.records FOR VALUES IN (%s) '
            'WITH (fillfactor = 25, autovacuum_vacuum_scale_factor = 0.1, '
            'autovacuum_analyze_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 1)', n, n);
    END LOOP;
END
$make$;
-- Records that are undecided when their slot is emptied. They stay longer than any slot, and are swept
-- row by row.
CREATE TABLE {schema}.records_kept PARTITION OF {schema}.records FOR VALUES IN (-1)
WITH (autovacuum_vacuum_scale_factor = 0.02);

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
INSERT INTO {schema}.meta (name, value)
VALUES ('retention', convert_to('ring {slots} {period}', 'UTF8'));
-- The identity of this store, different from every other store's; see place_1.
INSERT INTO {schema}.meta (name, value) VALUES ('identity', uuid_send(gen_random_uuid()));
