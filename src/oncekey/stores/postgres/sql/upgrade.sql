-- The parts of the script that brings a database up to date.

-- name: head
BEGIN;
SET LOCAL lock_timeout = '60s';
SET LOCAL statement_timeout = 0;
-- The tables are on this server's disk, whatever the session's setting. The script does not wait for
-- standbys: a claim that they have confirmed comes later in the log than the tables.
SET LOCAL synchronous_commit = 'local';
SELECT pg_advisory_xact_lock({seed});
DO $do$
BEGIN
    IF to_regnamespace('{schema_text}') IS NULL THEN
        CREATE SCHEMA {schema};
    END IF;
END
$do$;
CREATE TABLE IF NOT EXISTS {schema}.migrations (
    version    integer     PRIMARY KEY,
    name       text        NOT NULL,
    compatible integer     NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);

-- name: migration
DO $oncekey_migration$
BEGIN
    IF NOT EXISTS (SELECT FROM {schema}.migrations WHERE version = {version}) THEN
        EXECUTE $oncekey_sql$
{sql}
$oncekey_sql$;
        INSERT INTO {schema}.migrations (version, name, compatible)
        VALUES ({version}, '{name}', {compatible});
    END IF;
END
$oncekey_migration$;
