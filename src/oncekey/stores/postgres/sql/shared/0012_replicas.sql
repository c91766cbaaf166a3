-- Standbys that were seen: they count until an operator says that they are gone.
-- compatible: 3
--
-- They are rows of meta: 'replica ' and a name (since: first seen, until: last seen, value: JSON).
-- A standby that was forgotten is 'forgotten ' and its name; value says who forgot it, when and why.
-- Nothing sweeps them.

-- The settings and standbys that the guarantee depends on, and the standbys that were seen, as JSON (see
-- durability.py). A walsender that is connected to a database, and has no physical slot, replicates
-- logically.
CREATE FUNCTION {schema}.settings_2() RETURNS text LANGUAGE sql STABLE AS $settings$
    SELECT json_build_object(
        'fsync', current_setting('fsync'),
        'full_page_writes', current_setting('full_page_writes'),
        'synchronous_standby_names', current_setting('synchronous_standby_names'),
        'standby', pg_is_in_recovery(),
        'attached', (
            SELECT json_agg(json_build_array(a.application_name, host(a.client_addr), s.slot_name))
            FROM pg_catalog.pg_stat_replication r
            JOIN pg_catalog.pg_stat_activity a ON a.pid = r.pid
            LEFT JOIN pg_catalog.pg_replication_slots s ON s.active_pid = r.pid
            WHERE s.slot_type = 'physical' OR (s.slot_type IS NULL AND a.datid IS NULL)),
        'idle_slots', (
            SELECT json_agg(s.slot_name) FROM pg_catalog.pg_replication_slots s
            WHERE s.slot_type = 'physical' AND NOT s.temporary AND NOT s.active),
        'now', (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
        'sightings', (
            SELECT json_agg(json_build_array(convert_from(m.value, 'UTF8'), m.since, m.until))
            FROM {schema}.meta m WHERE starts_with(m.name, 'replica ')),
        'forgotten', (
            SELECT json_agg(json_build_array(substr(m.name, 11), convert_from(m.value, 'UTF8')))
            FROM {schema}.meta m WHERE starts_with(m.name, 'forgotten ')))::text
$settings$;

-- What releases before this read. For them a standby that was seen is as good as attached.
CREATE OR REPLACE FUNCTION {schema}.settings_1() RETURNS text LANGUAGE sql STABLE AS $settings$
    SELECT concat_ws(' ', current_setting('fsync'), current_setting('full_page_writes'),
        current_setting('synchronous_standby_names') !~ '^\s*$', pg_is_in_recovery(),
        (SELECT count(*) FROM pg_stat_replication)
            + (SELECT count(*) FROM {schema}.meta m WHERE starts_with(m.name, 'replica ')),
        (SELECT count(*) FROM pg_replication_slots WHERE slot_type = 'logical' AND active))
$settings$;
