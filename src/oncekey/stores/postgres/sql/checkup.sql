-- What `oncekey doctor` reads of a server. Each query is a read-only transaction of its own with a
-- timeout; those that read records are bounded by an index and a limit.

-- name: settings
SELECT name, setting, reset_val FROM pg_catalog.pg_settings WHERE name IN (
    'server_version_num', 'fsync', 'full_page_writes', 'synchronous_commit',
    'synchronous_standby_names', 'default_transaction_read_only', 'autovacuum', 'track_counts',
    'autovacuum_freeze_max_age', 'max_connections', 'superuser_reserved_connections',
    'reserved_connections');

-- name: state
SELECT pg_is_in_recovery(), EXISTS (SELECT FROM pg_catalog.pg_proc p
        WHERE p.pronamespace = to_regnamespace('{schema_text}') AND p.proname = 'settings_2'),
    (SELECT age(datfrozenxid) FROM pg_database WHERE datname = current_database()),
    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
    (SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user),
    (SELECT datconnlimit FROM pg_database WHERE datname = current_database());

-- name: clock
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;

-- Defaults that were set for a database, or for a role that can use our schema: the application's role
-- may be another one than ours.
-- name: role_settings
SELECT coalesce(r.rolname, 'every role'), coalesce(d.datname, 'every database'), c.setting
FROM pg_catalog.pg_db_role_setting s
CROSS JOIN unnest(s.setconfig) AS c(setting)
LEFT JOIN pg_catalog.pg_roles r ON r.oid = s.setrole
LEFT JOIN pg_catalog.pg_database d ON d.oid = s.setdatabase
WHERE c.setting LIKE 'synchronous_commit=%' AND (s.setdatabase = 0 OR d.datname = current_database())
    AND (s.setrole = 0 OR (r.rolcanlogin AND coalesce(
        has_schema_privilege(s.setrole, to_regnamespace('{schema_text}')::oid, 'USAGE'), true)))
ORDER BY 1, 2;

-- The oldest transactions of other sessions, and prepared ones, which no session shows.
-- name: transactions
SELECT who, extract(epoch FROM clock_timestamp() - since)::bigint FROM (
    SELECT format('session %s of %s (%s)', pid, coalesce(usename, '?'), coalesce(state, '?')) AS who,
        xact_start AS since
    FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'
    UNION ALL
    SELECT format('the prepared transaction %s of %s', gid, owner), prepared FROM pg_prepared_xacts
    WHERE database = current_database()
) open WHERE since < clock_timestamp() - $1::bigint * interval '1 second'
ORDER BY since LIMIT 3;

-- Large bodies lie in a table of their own, whose options are set as toast.NAME.
-- name: tables
SELECT c.relname::text, c.relkind::text, c.relpersistence::text, c.relrowsecurity,
    concat_ws(' ', array_to_string(c.reloptions, ' '),
        (SELECT string_agg('toast.' || option, ' ') FROM pg_catalog.pg_class t
         CROSS JOIN unnest(t.reloptions) option WHERE t.oid = c.reltoastrelid)),
    (SELECT coalesce(string_agg(t.tgname, ', '), '') FROM pg_catalog.pg_trigger t
     WHERE t.tgrelid = c.oid AND NOT t.tgisinternal),
    (SELECT coalesce(string_agg(r.rulename, ', '), '') FROM pg_catalog.pg_rewrite r
     WHERE r.ev_class = c.oid),
    coalesce(s.n_live_tup, 0), coalesce(s.n_dead_tup, 0),
    has_table_privilege(c.oid, 'SELECT')
FROM pg_catalog.pg_class c
LEFT JOIN pg_catalog.pg_stat_all_tables s ON s.relid = c.oid
WHERE c.relnamespace = to_regnamespace('{schema_text}') AND c.relkind IN ('r', 'p')
ORDER BY c.relname;

-- name: columns
SELECT c.relname::text, a.attname::text
FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
WHERE c.relnamespace = to_regnamespace('{schema_text}') AND c.relkind IN ('r', 'p')
    AND a.attnum > 0 AND NOT a.attisdropped;

-- name: functions
SELECT p.proname::text, p.prosrc FROM pg_catalog.pg_proc p
WHERE p.pronamespace = to_regnamespace('{schema_text}');

-- name: indexes
SELECT i.relname::text, x.indisvalid AND x.indisready, x.indisunique
FROM pg_catalog.pg_index x
JOIN pg_catalog.pg_class i ON i.oid = x.indexrelid
WHERE i.relnamespace = to_regnamespace('{schema_text}');

-- name: migrations
SELECT version, name, compatible FROM {schema}.migrations ORDER BY version;

-- name: retention
SELECT convert_from(value, 'UTF8') FROM {schema}.meta WHERE name = 'retention';

-- name: overdue
SELECT count(*), coalesce(min(due), 0) FROM (
    (SELECT sweep_at AS due FROM {schema}.records WHERE sweep_at <= $1::bigint
     ORDER BY sweep_at LIMIT $2::bigint)
    UNION ALL
    (SELECT sweep_at FROM {schema}.history WHERE sweep_at <= $1::bigint
     ORDER BY sweep_at LIMIT $2::bigint)
) overdue;

-- A record that was written once and has ended is of a caller's transaction. One whose lease ends with
-- it was decided by somebody else than its owner, perhaps days later.
-- name: runs
SELECT operation, finished_at - created_at,
    CASE WHEN revision > 0 THEN lease_until - finished_at END, keep
FROM (
    SELECT operation, finished_at, created_at, lease_until, keep, state, attempt, revision
    FROM {schema}.records ORDER BY fence + 0 DESC LIMIT $1::bigint
) newest
WHERE state IN (2, 3) AND attempt = 1 AND lease_until <> finished_at;
