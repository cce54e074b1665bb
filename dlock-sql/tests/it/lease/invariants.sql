-- Has each transaction checked that leaves a name or an entry changed: what must be true of a name then, and
-- what may only grow. One that breaks it fails. It is for tests, and for tables with the prefix `dlock_`.
CREATE FUNCTION dlock_check() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  changed bytea := CASE WHEN TG_OP = 'DELETE' THEN OLD.name ELSE NEW.name END;
  n dlock_name;
  head integer;
  broken text;
BEGIN
  SELECT * INTO n FROM dlock_name k WHERE k.name = changed;
  SELECT concat_ws(', ',
      CASE WHEN count(*) <> coalesce(n.others, 0) THEN 'others' END,
      CASE WHEN count(*) FILTER (WHERE e.phase = 0) <> n.waiting THEN 'waiting' END,
      CASE WHEN count(*) FILTER (WHERE e.phase IN (1, 2, 3)) <> n.held THEN 'held' END,
      CASE WHEN count(*) FILTER (WHERE e.phase = 4) <> n.watching THEN 'watching' END,
      CASE WHEN count(*) FILTER (WHERE e.phase <= 3 AND e.share >= 0) <> n.classed THEN 'classed' END,
      CASE WHEN bool_or(e.phase <= 3 AND e.share >= 0 AND e.share <> n.class) THEN 'class' END,
      CASE WHEN bool_or(e.phase NOT BETWEEN 0 AND 5) OR n.phase NOT BETWEEN 0 AND 3 THEN 'phase' END,
      CASE WHEN n.phase <> 0 AND n.held > 0 THEN 'two at once' END,
      -- The mark of a minimum hold.
      CASE WHEN bool_or(e.place < 0 AND e.phase <> 3) THEN 'place' END,
      CASE WHEN min(e.ends) < n.earliest THEN 'earliest is too late' END,
      CASE WHEN n.alone IS NOT NULL AND bool_or(e.id = n.alone AND e.phase IN (1, 2)) IS NOT TRUE
        THEN 'alone' END)
    INTO broken FROM dlock_entry e WHERE e.name = changed;
  SELECT o.share INTO head FROM dlock_entry o WHERE o.name = n.name AND o.phase = 0 ORDER BY o.place LIMIT 1;
  IF FOUND AND n.phase = 0 AND (n.held = 0 OR head = 0 OR head > n.held) THEN
    broken := broken || ', the next one is kept waiting';
  END IF;
  IF TG_TABLE_NAME = 'dlock_name' AND TG_OP = 'UPDATE' THEN
    IF NEW.token < OLD.token OR NEW.changes < OLD.changes OR NEW.hints < OLD.hints
      OR NEW.arrivals < OLD.arrivals THEN
      broken := broken || ', less than before';
    END IF;
    IF NEW.earliest < OLD.earliest
      AND NOT EXISTS (SELECT 1 FROM dlock_entry e WHERE e.name = NEW.name AND e.ends = NEW.earliest) THEN
      broken := broken || ', earliest is of none';
    END IF;
  END IF;
  IF broken <> '' THEN
    RAISE EXCEPTION 'broken: %', broken;
  END IF;
  RETURN NULL;
END $$;

CREATE CONSTRAINT TRIGGER dlock_check_name AFTER INSERT OR UPDATE OR DELETE ON dlock_name
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION dlock_check();
CREATE CONSTRAINT TRIGGER dlock_check_entry AFTER INSERT OR UPDATE OR DELETE ON dlock_entry
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION dlock_check();
