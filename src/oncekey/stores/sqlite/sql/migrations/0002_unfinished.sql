-- What has not ended, by the time of its latest claim. Only such rows are in the index: it stays as
-- small as what is under way, and finding them does not depend on how many have ended. The terms
-- are those of the query, word for word, or SQLite would not use it.
CREATE INDEX oncekey_records_unfinished ON oncekey_records (fence)
WHERE state IN (1, 4) OR (state = 0 AND steps <> x'');
