-- The outbox: made by create_outbox, not by the store's migrations, because only some need it. The
-- script is safe to run twice and from two hosts at once. A later version of it must keep what older
-- releases call: a changed function gets a new number.

-- name: create
BEGIN;
SET LOCAL lock_timeout = '60s';
SET LOCAL statement_timeout = 0;
SELECT pg_advisory_xact_lock({seed});

-- One row per message, deleted once it is published (or `keep` later). Times are microseconds of the
-- server's clock. due_at is when a publisher may take the row; while a publisher has it, that is when
-- its lease ends. state: 0 waits, 1 is parked, 2 is published. fence is that of the attempt that wrote
-- the row, 0 where there was none.
CREATE TABLE IF NOT EXISTS {schema}.outbox (
    seq          bigint   GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    due_at       bigint   NOT NULL,
    created_at   bigint   NOT NULL,
    published_at bigint   NOT NULL DEFAULT 0,
    fence        bigint   NOT NULL,
    owner        uuid,
    tries        integer  NOT NULL DEFAULT 0,
    refusals     integer  NOT NULL DEFAULT 0,
    state        smallint NOT NULL DEFAULT 0 CHECK (state BETWEEN 0 AND 2),
    id           text     NOT NULL UNIQUE,
    queue        text     NOT NULL,
    order_group  text,
    headers      text     NOT NULL,
    body         bytea    NOT NULL,
    error        text     NOT NULL DEFAULT ''
) WITH (
    -- Every row is written twice and deleted soon, so that dead rows are most of the table.
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.1,
    autovacuum_vacuum_cost_delay = 1
);
CREATE INDEX IF NOT EXISTS outbox_due ON {schema}.outbox (due_at, seq) WHERE state = 0;
CREATE INDEX IF NOT EXISTS outbox_groups ON {schema}.outbox (queue, order_group, seq)
    WHERE order_group IS NOT NULL AND state < 2;
CREATE INDEX IF NOT EXISTS outbox_parked ON {schema}.outbox (seq) WHERE state = 1;
CREATE INDEX IF NOT EXISTS outbox_published ON {schema}.outbox (published_at) WHERE state = 2;

-- Adds a message in the caller's transaction. A row of the same id stays as it is: of an earlier attempt
-- it is the same message. Transactions that write to one order group wait for each other, so that the
-- rows of a group are numbered in the order in which they commit.
CREATE OR REPLACE FUNCTION {schema}.outbox_add_1(
    p_now bigint, p_store text, p_id text, p_queue text, p_group text, p_headers text, p_body bytea,
    p_fence bigint
) RETURNS text LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $add$
DECLARE
    n bigint;
    v_found text;
BEGIN
    IF NOT EXISTS (
        SELECT FROM {schema}.meta m WHERE m.name = 'identity' AND m.value = decode(p_store, 'hex')
    ) THEN
        RETURN 'elsewhere';
    END IF;
    IF p_group IS NOT NULL THEN
        PERFORM pg_advisory_xact_lock(
            hashtextextended(length(p_queue) || ' ' || p_queue || p_group, {seed}));
    END IF;
    n := coalesce(p_now, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
    INSERT INTO {schema}.outbox (due_at, created_at, fence, id, queue, order_group, headers, body)
    VALUES (n, n, p_fence, p_id, p_queue, p_group, p_headers, p_body)
    ON CONFLICT (id) DO NOTHING;
    IF FOUND THEN
        RETURN 'added';
    END IF;
    SELECT CASE
        WHEN o.fence <> p_fence OR (o.queue = p_queue AND o.order_group IS NOT DISTINCT FROM p_group
            AND o.headers = p_headers AND o.body = p_body) THEN 'known'
        ELSE 'differs'
    END INTO v_found
    FROM {schema}.outbox o WHERE o.id = p_id;
    RETURN coalesce(v_found, 'known');  -- without a row it was published a moment ago
END
$add$;

-- Takes rows that are due. Takes and settlements go one after the other: with two takes at once, each
-- might have a part of an order group, and the later part might be published first. The lock is taken in a statement of its own,
-- so that the next one sees what the previous take has done.
CREATE OR REPLACE FUNCTION {schema}.outbox_take_1(
    p_now bigint, p_owner uuid, p_lease bigint, p_most integer, p_rounds integer, p_recheck_min bigint,
    p_recheck_max bigint, p_bytes bigint
) RETURNS SETOF {schema}.outbox LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $take$
DECLARE
    n bigint;
    v_due bigint[];
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('outbox', {seed}));
    n := coalesce(p_now, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
    FOR v_round IN 1..p_rounds LOOP
        v_due := ARRAY(
            SELECT o.seq FROM {schema}.outbox o WHERE o.state = 0 AND o.due_at <= n
            ORDER BY o.due_at, o.seq LIMIT p_most FOR UPDATE SKIP LOCKED
        );
        EXIT WHEN v_due = '{}';
        -- As many of them as fit; the first one always does.
        v_due := ARRAY(
            SELECT d.seq FROM (
                SELECT o.seq, sum(octet_length(o.body)) OVER (
                    ORDER BY o.due_at, o.seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
                FROM {schema}.outbox o WHERE o.seq = ANY (v_due)
            ) d
            WHERE coalesce(d.before, 0) < p_bytes
        );
        -- The first row of each group that is not among them holds back those behind it.
        UPDATE {schema}.outbox o
        SET due_at = greatest(least(gap.until, n + p_recheck_max), n + p_recheck_min),
            owner = NULL  -- of a lease that is over: a row with an owner is not made due by others
        FROM (
            SELECT g.queue, g.order_group, f.seq, f.until
            FROM (
                SELECT DISTINCT d.queue, d.order_group FROM {schema}.outbox d
                WHERE d.seq = ANY (v_due) AND d.order_group IS NOT NULL
            ) g CROSS JOIN LATERAL (
                SELECT e.seq, CASE e.state WHEN 0 THEN e.due_at ELSE n + p_recheck_max END AS until
                FROM {schema}.outbox e
                WHERE e.queue = g.queue AND e.order_group = g.order_group AND e.state < 2
                    AND e.seq <> ALL (v_due)
                ORDER BY e.seq LIMIT 1
            ) f
        ) gap
        WHERE o.seq = ANY (v_due) AND o.queue = gap.queue AND o.order_group = gap.order_group
            AND o.seq > gap.seq;
        RETURN QUERY
            WITH taken AS (
                UPDATE {schema}.outbox o SET owner = p_owner, due_at = n + p_lease, tries = o.tries + 1
                WHERE o.seq = ANY (v_due) AND o.due_at <= n
                RETURNING o.*
            )
            SELECT * FROM taken ORDER BY seq;
        EXIT WHEN FOUND;
    END LOOP;
END
$take$;

-- What became of taken rows; rows that another publisher has taken meanwhile are left alone. A message
-- that was published makes those due that wait behind it, unless one of its group has failed.
CREATE OR REPLACE FUNCTION {schema}.outbox_settle_1(
    p_now bigint, p_owner uuid, p_published bigint[], p_unsent bigint[], p_failed bigint[],
    p_delays bigint[], p_errors text[], p_counts boolean[], p_parks boolean[], p_keep bigint,
    p_wake integer
) RETURNS integer LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $settle$
DECLARE
    n bigint;
    v_queues text[];
    v_groups text[];
    v_published integer;
BEGIN
    -- A take that is under way would put off, behind rows that are deleted here, what is made due here.
    PERFORM pg_advisory_xact_lock(hashtextextended('outbox', {seed}));
    n := coalesce(p_now, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
    UPDATE {schema}.outbox o
    SET owner = NULL, due_at = n + f.delay, error = f.error, refusals = o.refusals + f.counts::integer,
        state = f.park::integer
    FROM unnest(p_failed, p_delays, p_errors, p_counts, p_parks) AS f (seq, delay, error, counts, park)
    WHERE o.seq = f.seq AND o.owner = p_owner AND o.state = 0;
    UPDATE {schema}.outbox o SET owner = NULL, due_at = o.created_at, tries = o.tries - 1
    WHERE o.seq = ANY (p_unsent) AND o.owner = p_owner AND o.state = 0;
    SELECT array_agg(g.queue), array_agg(g.order_group) INTO v_queues, v_groups
    FROM (
        SELECT o.queue, o.order_group FROM {schema}.outbox o
        WHERE o.seq = ANY (p_published) AND o.owner = p_owner AND o.order_group IS NOT NULL
        EXCEPT
        SELECT o.queue, o.order_group FROM {schema}.outbox o WHERE o.seq = ANY (p_failed)
    ) g;
    IF p_keep > 0 THEN
        UPDATE {schema}.outbox o SET state = 2, published_at = n, owner = NULL, error = ''
        WHERE o.seq = ANY (p_published) AND o.owner = p_owner AND o.state = 0;
    ELSE
        DELETE FROM {schema}.outbox o
        WHERE o.seq = ANY (p_published) AND o.owner = p_owner AND o.state = 0;
    END IF;
    GET DIAGNOSTICS v_published = ROW_COUNT;
    -- As of their own time, so that they go before those that were added after them.
    UPDATE {schema}.outbox o SET due_at = o.created_at
    FROM unnest(v_queues, v_groups) AS g (queue, order_group) CROSS JOIN LATERAL (
        SELECT e.seq FROM {schema}.outbox e
        WHERE e.queue = g.queue AND e.order_group = g.order_group AND e.state < 2
        ORDER BY e.seq LIMIT p_wake
    ) w
    WHERE o.seq = w.seq AND o.state = 0 AND o.owner IS NULL AND o.due_at > n;
    RETURN v_published;
END
$settle$;
COMMIT;
