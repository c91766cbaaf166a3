-- What a careful hand would write, on a table like oncekey's own: the same columns, the same
-- indexes, room on every page. The clock is read once per statement, as it must be.
-- In a finish, `:id` and the like are pgbench's variables.

-- name: table
CREATE TABLE records (
    id          uuid     NOT NULL,
    owner       uuid     NOT NULL,
    fence       bigint   NOT NULL,
    created_at  bigint   NOT NULL,
    lease_until bigint   NOT NULL,
    finished_at bigint   NOT NULL,
    keep        bigint   NOT NULL,
    audit       bigint   NOT NULL,
    sweep_at    bigint   NOT NULL,
    attempt     integer  NOT NULL,
    revision    integer  NOT NULL,
    state       smallint NOT NULL,
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
) WITH (fillfactor = 70);

-- name: index
CREATE INDEX ON records (sweep_at);

-- name: claim
INSERT INTO records
SELECT gen_random_uuid(), gen_random_uuid(), now, now, now + 30000000, 0, 86400000000, 604800000000,
       now + 691230000000, 1, 1, 1, 0, false,
       decode('01' || repeat('5a', 32), 'hex'), '', 'charge', '', '', '', ''
FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now) AS clock
ON CONFLICT (id) DO NOTHING
RETURNING id, owner, fence;

-- name: finish
UPDATE records
SET state = 2, revision = revision + 1, finished_at = now,
    body = '\x0101046a736f6e7b226964223a2263685f31227d'::bytea
FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now) AS clock
WHERE id = :id AND owner = :owner AND fence = :fence AND state = 1;

-- Keys to look up: finished ones, numbered.
-- name: fill
INSERT INTO records
SELECT lpad(to_hex(n), 32, '0')::uuid, gen_random_uuid(), now, now, now, now, 86400000000,
       604800000000, now + 691200000000, 1, 2, 2, 0, false,
       decode('01' || repeat('5a', 32), 'hex'), '', 'charge', '', '',
       '\x0101046a736f6e7b226964223a2263685f31227d'::bytea, ''
FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now) AS clock,
     generate_series(1, 20000) AS n;

-- A replay by hand: the row of a known key, by its primary key.
-- name: look_up
SELECT state, fingerprint, owner, fence, attempt, lease_until, finished_at, keep, body
FROM records
WHERE id = lpad(to_hex(:n::bigint), 32, '0')::uuid;
