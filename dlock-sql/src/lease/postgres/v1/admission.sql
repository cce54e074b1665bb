CREATE FUNCTION {p}micros(t timestamptz) RETURNS bigint LANGUAGE sql STABLE AS
  'SELECT (extract(epoch FROM t) * 1000000)::bigint';
CREATE FUNCTION {p}micros(d interval) RETURNS bigint LANGUAGE sql STABLE AS
  'SELECT (extract(epoch FROM d) * 1000000)::bigint';

-- Locks a name. A missing row is created if asked for; otherwise all fields are null.
--
-- If two create it at once, the second waits for the first at the key, inserts nothing, and locks the row of
-- the first. If it was deleted meanwhile, the deletion is committed by the time the row is not found, so the
-- next statement sees the floor that was raised before it.
--
-- A null name has no row, and none is created: a new connection calls with it to have the functions compiled.
CREATE FUNCTION {p}take(p_name bytea, p_make boolean) RETURNS {p}name LANGUAGE plpgsql AS $$
DECLARE
  n {p}name;
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION USING ERRCODE = 'DL001',
      MESSAGE = 'the locks of dlock need transactions of the isolation level read committed';
  END IF;
  LOOP
    SELECT * INTO n FROM {p}name r WHERE r.name = p_name FOR UPDATE;
    IF n.phase NOT BETWEEN 0 AND 3 THEN
      RAISE EXCEPTION USING ERRCODE = 'DL002',
        MESSAGE = 'a row of a lock has a phase that dlock knows nothing of';
    END IF;
    IF FOUND OR NOT p_make OR p_name IS NULL THEN
      RETURN n;
    END IF;
    INSERT INTO {p}name (name, token) SELECT p_name, m.token_floor FROM {p}meta m
      ON CONFLICT (name) DO NOTHING;
  END LOOP;
END $$;

CREATE FUNCTION {p}put(n {p}name) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  UPDATE {p}name r SET phase = n.phase, token = n.token, ends = n.ends, ttl = n.ttl, id = n.id,
    owner = n.owner, others = n.others, held = n.held, waiting = n.waiting, watching = n.watching,
    classed = n.classed, class = n.class, arrivals = n.arrivals, changes = n.changes, hints = n.hints,
    earliest = n.earliest, alone = n.alone, alone_until = n.alone_until
    WHERE r.name = n.name;
END $$;

-- Records a change of the holders. Its number shows pollers that there was one, and watches that one is
-- missing. It is kept in the row of each watch, behind its length, until the watch fetches it. If that row
-- grows too long nothing more is added, and the watch finds that a number is missing.
CREATE FUNCTION {p}tell(n {p}name, what text, who bytea, rest text) RETURNS {p}name LANGUAGE plpgsql AS $$
DECLARE
  message text;
BEGIN
  n.changes := n.changes + 1;
  IF n.watching > 0 THEN
    message := n.changes || ':' || what || encode(who, 'hex') || rest;
    UPDATE {p}entry e SET owner = coalesce(e.owner, '') || char_length(message) || ':' || message
      WHERE e.name = n.name AND e.phase = 4 AND coalesce(char_length(e.owner), 0) < 65536;
    PERFORM pg_notify(e.channel, 'W' || encode(e.id, 'hex'))
      FROM {p}entry e WHERE e.name = n.name AND e.phase = 4 AND e.channel IS NOT NULL;
  END IF;
  RETURN n;
END $$;

CREATE FUNCTION {p}tell_grant(n {p}name, who bytea, share integer, token bigint, life interval, owner text)
RETURNS {p}name LANGUAGE plpgsql AS $$
BEGIN
  RETURN {p}tell(n, 'G', who,
    ':' || share || ':' || token || ':' || {p}micros(life) || ':' || coalesce(owner, ''));
END $$;

-- Ends the exclusive hold.
CREATE FUNCTION {p}clear(n {p}name, t timestamptz) RETURNS {p}name LANGUAGE plpgsql AS $$
BEGIN
  n.phase := 0; n.ends := t; n.id := NULL; n.owner := NULL;
  RETURN n;
END $$;

-- The hold, queue entry or mark of that id, also in the name's own row; null if there is none.
CREATE FUNCTION {p}find(n {p}name, who bytea) RETURNS {p}entry LANGUAGE plpgsql AS $$
DECLARE
  e {p}entry;
BEGIN
  IF n.phase <> 0 AND n.id = who THEN
    SELECT n.name, n.id, n.phase, -1, 5, 0, n.token, n.ttl, n.ends, n.owner, NULL INTO e;
  ELSE
    SELECT * INTO e FROM {p}entry o WHERE o.name = n.name AND o.id = who;
  END IF;
  RETURN e;
END $$;

CREATE FUNCTION {p}remove(n {p}name, e {p}entry, t timestamptz) RETURNS {p}name LANGUAGE plpgsql AS $$
BEGIN
  -- The mark beside a minimum hold has the same id, and another phase.
  IF n.phase = e.phase AND n.id = e.id THEN
    RETURN {p}clear(n, t);
  END IF;
  DELETE FROM {p}entry d WHERE d.name = e.name AND d.id = e.id;
  n.others := n.others - 1;
  IF e.phase = 0 THEN
    n.waiting := n.waiting - 1;
  ELSIF e.phase <= 3 THEN
    n.held := n.held - 1;
  ELSIF e.phase = 4 THEN
    n.watching := n.watching - 1;
  END IF;
  IF e.phase <= 3 AND e.share >= 0 THEN
    n.classed := n.classed - 1;
  END IF;
  IF n.alone = e.id THEN
    n.alone := NULL;
  END IF;
  RETURN n;
END $$;

-- Refuses copies of a request that are still in flight, for a minute, which is longer than one can be. A
-- minimum hold of the same id in the row refuses them for now; the mark comes after it, with place -1.
CREATE FUNCTION {p}bury(n {p}name, who bytea, t timestamptz) RETURNS {p}name LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO {p}entry (name, id, phase, share, priority, place, ttl, ends)
    VALUES (n.name, who, 5, -1, 0, 0, interval '1 minute', t + interval '1 minute')
    ON CONFLICT (name, id) DO NOTHING;
  IF FOUND THEN
    n.others := n.others + 1;
    n.earliest := least(n.earliest, t + interval '1 minute');
  ELSE
    UPDATE {p}entry o SET place = -1 WHERE o.name = n.name AND o.id = who AND o.phase = 3;
  END IF;
  RETURN n;
END $$;

-- Removes what has expired. Every change begins with it: no operation may meet an expired entry.
CREATE FUNCTION {p}settle(n {p}name, t timestamptz) RETURNS {p}name LANGUAGE plpgsql AS $$
DECLARE
  e {p}entry;
  first timestamptz;
BEGIN
  IF n.phase <> 0 AND n.ends <= t THEN
    -- The holder had released a minimum hold that is over.
    n := {p}tell(n, CASE n.phase WHEN 3 THEN 'R' ELSE 'X' END, n.id, '');
    n := {p}clear(n, t);
  END IF;
  IF n.others > 0 AND n.earliest <= t THEN
    FOR e IN SELECT * FROM {p}entry o WHERE o.name = n.name AND o.ends <= t ORDER BY o.token LOOP
      n := {p}remove(n, e, t);
      n.hints := n.hints + 1;
      IF e.phase IN (1, 2, 3) THEN
        n := {p}tell(n, CASE e.phase WHEN 3 THEN 'R' ELSE 'X' END, e.id, '');
      END IF;
      IF e.phase = 3 AND e.place < 0 THEN
        n := {p}bury(n, e.id, t);
      END IF;
    END LOOP;
    SELECT min(o.ends) INTO first FROM {p}entry o WHERE o.name = n.name;
    n.earliest := coalesce(first, 'infinity');
  END IF;
  RETURN n;
END $$;

CREATE FUNCTION {p}admissible(n {p}name, share integer) RETURNS boolean LANGUAGE sql IMMUTABLE AS
  'SELECT n.phase = 0 AND CASE WHEN share < 0 THEN n.held = 0 ELSE share = 0 OR n.held < share END';

-- The one admission routine, run by every change: grants from the head of the queue while the head is
-- admissible. Not only a release makes room: a withdrawn writer or a downgrade admits readers.
--
-- A waiter is offered the lease for the rest of its queue lease, and is notified. If it is dead, the offer
-- ends when the queue lease would have; if the message is lost, it learns of the offer when it asks again.
-- Either way no one else is admitted meanwhile. Its ttl begins when it claims the offer.
CREATE FUNCTION {p}admit(n {p}name, t timestamptz) RETURNS {p}name LANGUAGE plpgsql AS $$
DECLARE
  e {p}entry;
  last timestamptz;
BEGIN
  WHILE n.waiting > 0 AND n.phase = 0 LOOP
    SELECT * INTO e FROM {p}entry o WHERE o.name = n.name AND o.phase = 0 ORDER BY o.place LIMIT 1;
    EXIT WHEN NOT FOUND OR NOT {p}admissible(n, e.share);
    n.token := greatest(n.token + 1, {p}micros(t));
    last := least(e.ends, t + e.ttl);
    IF e.share < 0 THEN
      n := {p}remove(n, e, t);
      n.phase := 1; n.id := e.id; n.ttl := e.ttl; n.ends := last; n.owner := e.owner;
    ELSE
      UPDATE {p}entry o SET phase = 1, token = n.token, ends = last WHERE o.name = n.name AND o.id = e.id;
      n.waiting := n.waiting - 1; n.held := n.held + 1;
      n.earliest := least(n.earliest, last);
    END IF;
    IF e.channel IS NOT NULL THEN
      PERFORM pg_notify(e.channel, 'G' || encode(e.id, 'hex') || ':' || n.token || ':' ||
        {p}micros(t) || ':' || {p}micros(last));
    END IF;
    n := {p}tell_grant(n, e.id, e.share, n.token, last - t, e.owner);
  END LOOP;
  RETURN n;
END $$;

-- Begins most changes: locks the name, and removes what has expired. If it has no row and none is created,
-- all fields of `n` are null, later steps do nothing, and the word is N.
CREATE FUNCTION {p}enter(p_name bytea, p_make boolean, p_admit boolean) RETURNS {p}step LANGUAGE plpgsql AS $$
DECLARE
  s {p}step;
  n {p}name := {p}take(p_name, p_make);
  a {p}answer;
  t timestamptz := clock_timestamp();
BEGIN
  a.word := 'N';
  IF n.name IS NOT NULL THEN
    a.at := {p}micros(t);
    n := {p}settle(n, t);
    IF p_admit THEN
      n := {p}admit(n, t);
    END IF;
  END IF;
  s.n := n; s.a := a; s.t := t;
  RETURN s;
END $$;

-- Makes the next waiter ask again: a hold in its way ends sooner, or it has just become the next.
CREATE FUNCTION {p}hint(n {p}name) RETURNS {p}name LANGUAGE plpgsql AS $$
DECLARE
  e {p}entry;
BEGIN
  n.hints := n.hints + 1;
  IF n.waiting > 0 THEN
    SELECT * INTO e FROM {p}entry o WHERE o.name = n.name AND o.phase = 0 ORDER BY o.place LIMIT 1;
    IF e.channel IS NOT NULL THEN
      PERFORM pg_notify(e.channel, 'K' || encode(e.id, 'hex') || ':' || n.hints);
    END IF;
  END IF;
  RETURN n;
END $$;

-- When the first hold in the way expires, in microseconds; null if there is none.
CREATE FUNCTION {p}recheck(n {p}name, t timestamptz) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  first timestamptz;
  head timestamptz;
BEGIN
  IF n.phase <> 0 THEN
    first := n.ends;
  ELSIF n.held > 0 THEN
    SELECT min(o.ends) INTO first FROM {p}entry o WHERE o.name = n.name AND o.phase IN (1, 2, 3);
  END IF;
  SELECT o.ends INTO head FROM {p}entry o WHERE o.name = n.name AND o.phase = 0 ORDER BY o.place LIMIT 1;
  RETURN {p}micros(least(first, head) - t);
END $$;

-- What a known request has: its hold, which it claims by asking, or its place in the queue. The word is null
-- if it is not known.
CREATE FUNCTION {p}claim(n {p}name, who bytea, queue interval, p_channel text, t timestamptz)
RETURNS {p}step LANGUAGE plpgsql AS $$
DECLARE
  s {p}step;
  a {p}answer;
  e {p}entry;
BEGIN
  a.at := {p}micros(t);
  IF n.phase <> 0 AND n.id = who THEN
    IF n.phase = 1 THEN
      n.phase := 2; n.ends := t + n.ttl;
    END IF;
    a.word := CASE n.phase WHEN 3 THEN 'R' ELSE 'G' END; a.token := n.token; a.life := {p}micros(n.ends - t);
  ELSIF n.others > 0 THEN
    SELECT * INTO e FROM {p}entry o WHERE o.name = n.name AND o.id = who;
    IF NOT FOUND THEN
      a.word := NULL;
    ELSIF e.phase = 0 THEN
      -- Hardly anything is missing: nothing is stored. More than was asked for is never stored, since a dead
      -- waiter blocks the others for that long.
      IF e.ends + queue / 16 < t + queue OR e.channel IS DISTINCT FROM p_channel THEN
        UPDATE {p}entry o SET ends = t + queue, channel = p_channel WHERE o.name = n.name AND o.id = who;
        n.earliest := least(n.earliest, t + queue);
      END IF;
      a.word := 'Q'; a.life := {p}recheck(n, t);
      SELECT count(*) INTO a.ahead
        FROM (SELECT 1 FROM {p}entry o WHERE o.name = n.name AND o.phase = 0 AND o.place < e.place
          LIMIT 64) s;
    ELSIF e.phase <= 2 THEN
      IF e.phase = 1 THEN
        e.ends := t + e.ttl;
        UPDATE {p}entry o SET phase = 2, ends = e.ends WHERE o.name = n.name AND o.id = who;
      END IF;
      a.word := 'G'; a.token := e.token; a.life := {p}micros(e.ends - t);
    ELSE
      a.word := CASE e.phase WHEN 3 THEN 'R' ELSE 'A' END;
    END IF;
  END IF;
  s.n := n; s.a := a;
  RETURN s;
END $$;

