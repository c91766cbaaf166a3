-- The operators' view of steps, with both forms in which a child key may have been sent.
-- compatible: 3

-- The view of 0008_operators.sql, replaced in place with one more column at its end; see there and in
-- 0006_step_facts.sql. Which of the two forms the other service has got is not known here: the step is
-- stored before its function calls a client, and some clients quote keys (see core/step_format.py).
CREATE OR REPLACE VIEW {schema}.steps AS
SELECT r.id, r.scope, split_part(r.operation, chr(9), 1) AS operation, r.key, s.number,
    s.name AS step, s.done, s.at,
    CASE WHEN s.done THEN {schema}.answer_1(f.content) END AS result,
    CASE WHEN NOT s.done THEN f.child_key END AS intent,
    CASE WHEN s.done THEN f.external_id END AS external_id,
    CASE WHEN s.done THEN f.status END AS status,
    CASE WHEN NOT s.done THEN {schema}.answer_1(f.content) END AS request,
    CASE WHEN NOT s.done THEN '"' || f.child_key || '"' END AS quoted_intent
FROM {schema}.records r
CROSS JOIN LATERAL (
    SELECT (row_number() OVER (ORDER BY o.number))::integer AS number, o.name, o.done, o.at, o.body
    FROM {schema}.steps_1(r.steps) o
    WHERE o.name IS NULL OR NOT starts_with(o.name, 'oncekey:')
) s
LEFT JOIN LATERAL {schema}.step_1(s.body) f ON true
WHERE r.steps <> ''::bytea;
