-- The unfinished records, by the time of their latest claim. Only they are in the index, so finding them
-- does not depend on how many records have ended. Its condition is that of the query, word for word;
-- otherwise SQLite would not use it.
CREATE INDEX oncekey_records_unfinished ON oncekey_records (fence)
WHERE state IN (1, 4) OR (state = 0 AND steps <> x'');
