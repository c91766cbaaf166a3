-- The queries of the outbox; outbox_table.sql has what they call.

-- name: outbox_add
SELECT {schema}.outbox_add_1($1::bigint, $2::text, $3::text, $4::text, $5::text, $6::text, $7::bytea,
    $8::bigint);

-- name: outbox_take
SELECT seq, id, queue, order_group, headers, body, tries, refusals, created_at, error
FROM {schema}.outbox_take_1($1::bigint, $2::uuid, $3::bigint, $4::integer, $5::integer, $6::bigint,
    $7::bigint, $8::bigint);

-- name: outbox_settle
SELECT {schema}.outbox_settle_1($1::bigint, $2::uuid, $3::bigint[], $4::bigint[], $5::bigint[],
    $6::bigint[], $7::text[], $8::boolean[], $9::boolean[], $10::bigint, $11::integer);

-- name: outbox_purge
WITH due AS (
    SELECT seq FROM {schema}.outbox
    WHERE state = 2 AND published_at <=
        coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) - $2::bigint
    ORDER BY published_at LIMIT $3::integer FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM {schema}.outbox o USING due WHERE o.seq = due.seq RETURNING 1
)
SELECT count(*) FROM gone;

-- name: outbox_measure
SELECT count(*) FILTER (WHERE state = 0), count(*) FILTER (WHERE state = 0 AND owner IS NOT NULL
        AND due_at > n), count(*) FILTER (WHERE state = 1), count(*) FILTER (WHERE state = 2),
    coalesce(max(n) - min(created_at) FILTER (WHERE state = 0), 0)
FROM {schema}.outbox,
    (SELECT coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS n) c;

-- name: outbox_parked
SELECT seq, id, queue, order_group, headers, body, tries, refusals, created_at, error
FROM {schema}.outbox WHERE state = 1 ORDER BY seq LIMIT $1::integer;

-- name: outbox_release
WITH changed AS (
    UPDATE {schema}.outbox SET state = 0, refusals = 0, tries = 0, owner = NULL, due_at = created_at
    WHERE state = 1 AND id = ANY ($1::text[]) RETURNING 1
)
SELECT count(*) FROM changed;

-- Those that waited behind a discarded message are due now.
-- name: outbox_discard
WITH gone AS (
    DELETE FROM {schema}.outbox WHERE state = 1 AND id = ANY ($1::text[])
    RETURNING queue, order_group
), woken AS (
    UPDATE {schema}.outbox o SET due_at = o.created_at
    FROM (SELECT DISTINCT queue, order_group FROM gone WHERE order_group IS NOT NULL) g
    WHERE o.queue = g.queue AND o.order_group = g.order_group AND o.state = 0 AND o.owner IS NULL
)
SELECT count(*) FROM gone;
