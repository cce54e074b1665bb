-- Version 1. {p} is the schema and the prefix, {n} the prefix alone (an index is in the schema of its table).
--
-- Whoever changes a name locks its row in `name` first and reads everything else in later statements, so under `read committed` it sees
-- what the one before has committed. Several names are locked in the order of their bytes. Nobody keeps a lock across a round trip.
--
-- Invariants: while `phase` of a name is not 0 it has no shared holder (`held` = 0). `others` is the number of its rows in `entry`: while it
-- is 0 the row in `name` is all there is, which is what the short statements go by. `earliest` is not after the end of any entry.

CREATE TABLE {p}meta (
  only_row smallint PRIMARY KEY CHECK (only_row = 1),
  schema_version integer NOT NULL,
  -- No name without a row was ever granted a larger token than this.
  token_floor bigint NOT NULL,
  -- When dead names were last looked for.
  swept timestamptz NOT NULL
);
INSERT INTO {p}meta VALUES (1, 0, 0, clock_timestamp());

CREATE TABLE {p}name (
  name bytea PRIMARY KEY,
  -- Of the exclusive holder: 0 none, 1 offered to a waiter who has not come for it yet, 2 held, 3 kept by a minimum hold.
  phase smallint NOT NULL DEFAULT 0,
  -- The last token that was granted. While somebody holds it alone: the holder's.
  token bigint NOT NULL,
  -- When that lease ends; where there is none, since when.
  ends timestamptz NOT NULL DEFAULT clock_timestamp(),
  ttl interval NOT NULL DEFAULT interval '0',
  id bytea,
  owner text,
  -- Rows in entry; of these the shared holders, the waiters, the watches, and those of a shared mode, be they holders or waiters.
  others integer NOT NULL DEFAULT 0,
  held integer NOT NULL DEFAULT 0,
  waiting integer NOT NULL DEFAULT 0,
  watching integer NOT NULL DEFAULT 0,
  classed integer NOT NULL DEFAULT 0,
  -- Of these last: 0 readers, n permits of n.
  class integer NOT NULL DEFAULT 0,
  arrivals bigint NOT NULL DEFAULT 0,
  -- Changes of the holders, which have numbers without a gap; and of anything else that those who wait should look at.
  changes bigint NOT NULL DEFAULT 0,
  hints bigint NOT NULL DEFAULT 0,
  earliest timestamptz NOT NULL DEFAULT 'infinity',
  -- The shared holder that wants to be alone, and until when that counts.
  alone bytea,
  alone_until timestamptz
) WITH (fillfactor = 50);

CREATE TABLE {p}entry (
  name bytea NOT NULL,
  id bytea NOT NULL,
  -- 0 queued, 1 offered, 2 held, 3 kept by a minimum hold, 4 a watch, 5 the tombstone of a request that may still arrive.
  phase smallint NOT NULL,
  -- -1 exclusive, 0 a reader, n one of n permits.
  share integer NOT NULL,
  priority smallint NOT NULL,
  -- (10 - priority) * 2^48 + arrival: the smallest is next.
  place bigint NOT NULL,
  token bigint,
  ttl interval NOT NULL,
  ends timestamptz NOT NULL,
  owner text,
  -- Where its client is told.
  channel text,
  PRIMARY KEY (name, id)
) WITH (fillfactor = 70);
CREATE INDEX {n}queue ON {p}entry (name, place) WHERE phase = 0;
CREATE INDEX {n}holder ON {p}entry (name) WHERE phase IN (1, 2, 3);
CREATE INDEX {n}watch ON {p}entry (name) WHERE phase = 4;

CREATE TABLE {p}fence (
  resource bytea PRIMARY KEY,
  max_exclusive bigint,
  max_any bigint,
  value bytea NOT NULL
);

-- What became of it, the token, microseconds (of life, or until it pays to ask again), the server's time in microseconds since 1970, how many
-- are ahead, and how many others are there after it: rows in entry (who waits or shares counts itself), and after a release whoever has the name alone then.
CREATE TYPE {p}answer AS (word text, token bigint, life bigint, at bigint, ahead integer, others integer);
CREATE TYPE {p}renewed AS (item integer, word text, token bigint, life bigint, at bigint, ahead integer);
CREATE TYPE {p}step AS (n {p}name, a {p}answer);

CREATE FUNCTION {p}micros(t timestamptz) RETURNS bigint LANGUAGE sql STABLE AS
  'SELECT (extract(epoch FROM t) * 1000000)::bigint';
CREATE FUNCTION {p}micros(d interval) RETURNS bigint LANGUAGE sql STABLE AS
  'SELECT (extract(epoch FROM d) * 1000000)::bigint';

-- Locks a name. Its row is made if it is wanted and not there; of one that is not there all fields are null.
--
-- Two that make it at once: the second one waits for the first at the key, makes nothing, and locks what the first has made. One that was deleted
-- meanwhile: the deletion is committed when the row is not found, so the floor that rose before it is seen by the statement after.
--
-- Of no name there is no row, and none is made: that is how a new connection has the functions compiled before they are needed.
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
      RAISE EXCEPTION USING ERRCODE = 'DL002', MESSAGE = 'a row of a lock has a phase that dlock knows nothing of';
    END IF;
    IF FOUND OR NOT p_make OR p_name IS NULL THEN
      RETURN n;
    END IF;
    INSERT INTO {p}name (name, token) SELECT p_name, m.token_floor FROM {p}meta m ON CONFLICT (name) DO NOTHING;
  END LOOP;
END $$;

CREATE FUNCTION {p}put(n {p}name) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  UPDATE {p}name r SET phase = n.phase, token = n.token, ends = n.ends, ttl = n.ttl, id = n.id, owner = n.owner, others = n.others,
    held = n.held, waiting = n.waiting, watching = n.watching, classed = n.classed, class = n.class, arrivals = n.arrivals,
    changes = n.changes, hints = n.hints, earliest = n.earliest, alone = n.alone, alone_until = n.alone_until
    WHERE r.name = n.name;
END $$;

-- A change of the holders, for those who watch. The number shows them when one is missing, and those who poll that there was one.
--
-- Who watches behind a pooler cannot listen: what it is told stands in its row until it comes for it, each message behind its length. Where that is much it
-- is told no more, and finds that a number is missing.
CREATE FUNCTION {p}tell(n {p}name, what text, who bytea, rest text) RETURNS {p}name LANGUAGE plpgsql AS $$
DECLARE
  message text;
BEGIN
  n.changes := n.changes + 1;
  IF n.watching > 0 THEN
    message := n.changes || ':' || what || encode(who, 'hex') || rest;
    PERFORM pg_notify(e.channel, 'W' || encode(e.id, 'hex') || ':' || message)
      FROM {p}entry e WHERE e.name = n.name AND e.phase = 4 AND e.channel IS NOT NULL;
    UPDATE {p}entry e SET owner = coalesce(e.owner, '') || char_length(message) || ':' || message
      WHERE e.name = n.name AND e.phase = 4 AND e.channel IS NULL AND coalesce(char_length(e.owner), 0) < 65536;
  END IF;
  RETURN n;
END $$;

CREATE FUNCTION {p}tell_grant(n {p}name, who bytea, share integer, token bigint, life interval, owner text)
RETURNS {p}name LANGUAGE plpgsql AS $$
BEGIN
  RETURN {p}tell(n, 'G', who, ':' || share || ':' || token || ':' || {p}micros(life) || ':' || coalesce(owner, ''));
END $$;

-- Nobody holds it alone any more.
CREATE FUNCTION {p}clear(n {p}name, t timestamptz) RETURNS {p}name LANGUAGE plpgsql AS $$
BEGIN
  n.phase := 0;
  n.ends := t;
  n.id := NULL;
  n.owner := NULL;
  RETURN n;
END $$;

CREATE FUNCTION {p}remove(n {p}name, e {p}entry) RETURNS {p}name LANGUAGE plpgsql AS $$
BEGIN
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

-- A copy of a request that is on its way is not heard for a minute, which is longer than one can be. Where a minimum hold of its own stands in the
-- row, that keeps it from being heard for now, and the mark comes after it: place -1.
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

-- Takes back what has run out. First in every change: nothing must meet an entry that has ended.
CREATE FUNCTION {p}settle(n {p}name, t timestamptz) RETURNS {p}name LANGUAGE plpgsql AS $$
DECLARE
  e {p}entry;
  first timestamptz;
BEGIN
  IF n.phase <> 0 AND n.ends <= t THEN
    -- A minimum hold that is over was let go by its holder.
    n := {p}tell(n, CASE n.phase WHEN 3 THEN 'R' ELSE 'X' END, n.id, '');
    n := {p}clear(n, t);
  END IF;
  IF n.others > 0 AND n.earliest <= t THEN
    FOR e IN SELECT * FROM {p}entry o WHERE o.name = n.name AND o.ends <= t ORDER BY o.token LOOP
      n := {p}remove(n, e);
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

-- The one admission routine, run by every change: grants from the head of the queue while the head is admissible. Not only a release opens the
-- way: a withdrawn writer lets in the readers behind it, and so does a downgrade.
--
-- Who waits is offered the lease for what is left of its place in the queue, and told. If it is dead, that is over as soon as the place would have
-- been; if the message is lost, it is told when it asks again. Either way nobody else was let in. Its ttl begins when it comes for it.
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
      n := {p}remove(n, e);
      n.phase := 1;
      n.id := e.id;
      n.ttl := e.ttl;
      n.ends := last;
      n.owner := e.owner;
    ELSE
      UPDATE {p}entry o SET phase = 1, token = n.token, ends = last WHERE o.name = n.name AND o.id = e.id;
      n.waiting := n.waiting - 1;
      n.held := n.held + 1;
      n.earliest := least(n.earliest, last);
    END IF;
    IF e.channel IS NOT NULL THEN
      PERFORM pg_notify(e.channel, 'G' || encode(e.id, 'hex') || ':' || n.token || ':' || {p}micros(t) || ':' || {p}micros(last));
    END IF;
    n := {p}tell_grant(n, e.id, e.share, n.token, last - t, e.owner);
  END LOOP;
  RETURN n;
END $$;

-- Something in the way ends sooner than was known, or who is next has changed: whoever is next asks again, and learns when.
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

-- When the first of what stands in the way runs out, in microseconds; null where nothing does.
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

-- What a request that is here already has: its hold, which it claims by that, or its place in the queue. The word is null where it is not here.
CREATE FUNCTION {p}claim(n {p}name, who bytea, queue interval, p_channel text, t timestamptz) RETURNS {p}step LANGUAGE plpgsql AS $$
DECLARE
  s {p}step;
  a {p}answer;
  e {p}entry;
BEGIN
  a.at := {p}micros(t);
  IF n.phase <> 0 AND n.id = who THEN
    IF n.phase = 1 THEN
      n.phase := 2;
      n.ends := t + n.ttl;
    END IF;
    a.word := CASE n.phase WHEN 3 THEN 'R' ELSE 'G' END;
    a.token := n.token;
    a.life := {p}micros(n.ends - t);
  ELSIF n.others > 0 THEN
    SELECT * INTO e FROM {p}entry o WHERE o.name = n.name AND o.id = who;
    IF NOT FOUND THEN
      a.word := NULL;
    ELSIF e.phase = 0 THEN
      -- Hardly anything is missing: nothing is stored. More than was asked for is never stored, since one that dies is in the way for as long.
      IF e.ends + queue / 16 < t + queue OR e.channel IS DISTINCT FROM p_channel THEN
        UPDATE {p}entry o SET ends = t + queue, channel = p_channel WHERE o.name = n.name AND o.id = who;
        n.earliest := least(n.earliest, t + queue);
      END IF;
      a.word := 'Q';
      a.life := {p}recheck(n, t);
      SELECT count(*) INTO a.ahead
        FROM (SELECT 1 FROM {p}entry o WHERE o.name = n.name AND o.phase = 0 AND o.place < e.place LIMIT 64) s;
    ELSIF e.phase <= 2 THEN
      IF e.phase = 1 THEN
        e.ends := t + e.ttl;
        UPDATE {p}entry o SET phase = 2, ends = e.ends WHERE o.name = n.name AND o.id = who;
      END IF;
      a.word := 'G';
      a.token := e.token;
      a.life := {p}micros(e.ends - t);
    ELSE
      a.word := CASE e.phase WHEN 3 THEN 'R' ELSE 'A' END;
    END IF;
  END IF;
  s.n := n;
  s.a := a;
  RETURN s;
END $$;

-- Asks for a name. Idempotent in the id: sent again it finds its own hold or its own place; arrived after it was abandoned, the tombstone.
CREATE FUNCTION {p}attempt(p_name bytea, p_id bytea, p_share integer, p_ttl bigint, p_queue bigint, p_priority integer,
  p_channel text, p_owner text) RETURNS {p}answer LANGUAGE plpgsql AS $$
DECLARE
  n {p}name;
  s {p}step;
  a {p}answer;
  t timestamptz;
  life interval := p_ttl * interval '1 microsecond';
  queue interval := p_queue * interval '1 microsecond';
  spot bigint;
  head bigint;
BEGIN
  n := {p}take(p_name, true);
  t := clock_timestamp();
  -- To call them takes longer than to see that there is nothing to do. (Of no name everything is null: then they are called, to be compiled.)
  IF (n.ends > t AND n.earliest > t AND n.phase <> 0) IS NOT TRUE THEN
    n := {p}admit({p}settle(n, t), t);
  END IF;
  s := {p}claim(n, p_id, queue, p_channel, t);
  n := s.n;
  a := s.a;
  IF a.word IS NULL AND p_share >= 0 AND n.classed > 0 AND n.class <> p_share THEN
    a.word := 'M';
    a.token := n.class;
  END IF;
  IF a.word IS NULL THEN
    spot := (10 - p_priority)::bigint * 281474976710656 + n.arrivals + 1;
    IF n.waiting > 0 THEN
      SELECT o.place INTO head FROM {p}entry o WHERE o.name = p_name AND o.phase = 0 ORDER BY o.place LIMIT 1;
    END IF;
    -- Only the head of the queue is ever granted. One that does not queue overtakes nobody.
    IF {p}admissible(n, p_share) AND (head IS NULL OR (p_queue > 0 AND spot < head)) THEN
      n.token := greatest(n.token + 1, {p}micros(t));
      IF p_share < 0 THEN
        n.phase := 2;
        n.id := p_id;
        n.ttl := life;
        n.ends := t + life;
        n.owner := p_owner;
      ELSE
        INSERT INTO {p}entry (name, id, phase, share, priority, place, token, ttl, ends, owner, channel)
          VALUES (p_name, p_id, 2, p_share, p_priority, spot, n.token, life, t + life, p_owner, p_channel);
        n.others := n.others + 1;
        n.held := n.held + 1;
        n.classed := n.classed + 1;
        n.class := p_share;
        n.earliest := least(n.earliest, t + life);
      END IF;
      n := {p}tell_grant(n, p_id, p_share, n.token, life, p_owner);
      a.word := 'G';
      a.token := n.token;
      a.life := p_ttl;
    ELSIF p_queue = 0 THEN
      a.word := 'H';
      a.life := {p}recheck(n, t);
    ELSE
      INSERT INTO {p}entry (name, id, phase, share, priority, place, ttl, ends, owner, channel)
        VALUES (p_name, p_id, 0, p_share, p_priority, spot, life, t + queue, p_owner, p_channel);
      n.arrivals := n.arrivals + 1;
      n.others := n.others + 1;
      n.waiting := n.waiting + 1;
      IF p_share >= 0 THEN
        n.classed := n.classed + 1;
        n.class := p_share;
      END IF;
      n.earliest := least(n.earliest, t + queue);
      a.word := 'Q';
      a.life := {p}recheck(n, t);
      SELECT count(*) INTO a.ahead
        FROM (SELECT 1 FROM {p}entry o WHERE o.name = p_name AND o.phase = 0 AND o.place < spot LIMIT 64) s;
    END IF;
  END IF;
  a.others := n.others;
  PERFORM {p}put(n);
  RETURN a;
END $$;

-- Ends a lease by its id, at once or after a minimum hold, and hands the name to whoever is next in the same step.
--
-- Most of them are plain: whoever has the name alone lets go, the head of the queue wants it alone, nobody watches, and nothing has run out. Three statements leave
-- behind then what `settle`, `tell`, `clear` and `admit` would; those take twice as long, since PL/pgSQL sets up each of their expressions anew in each transaction.
-- Where it is not that plain, they have changed nothing. (Of no name they are run as well, and find nothing: that has them planned.)
CREATE FUNCTION {p}release(p_name bytea, p_id bytea, p_keep bigint, p_bury boolean) RETURNS {p}answer LANGUAGE plpgsql AS $$
DECLARE
  n {p}name;
  e {p}entry;
  a {p}answer;
  t timestamptz;
  keep interval;
  next_id bytea;
  next_ttl interval;
  next_ends timestamptz;
  next_owner text;
  next_channel text;
BEGIN
  PERFORM 1 FROM {p}name k WHERE k.name = p_name AND k.id = p_id AND k.phase IN (1, 2) AND k.waiting > 0 AND k.watching = 0
    AND k.ends > clock_timestamp() AND k.earliest > clock_timestamp() AND p_keep = 0 AND NOT p_bury FOR UPDATE;
  IF FOUND OR p_name IS NULL THEN
    -- The clock once more: it may have been waited for the name.
    DELETE FROM {p}entry d
      WHERE d.ctid = (SELECT o.ctid FROM {p}entry o WHERE o.name = p_name AND o.phase = 0 ORDER BY o.place LIMIT 1)
        AND d.share < 0 AND d.ends > clock_timestamp()
      RETURNING d.id, d.ttl, d.ends, d.owner, d.channel, clock_timestamp() INTO next_id, next_ttl, next_ends, next_owner, next_channel, t;
    IF FOUND OR p_name IS NULL THEN
      UPDATE {p}name k SET phase = 1, id = next_id, owner = next_owner, ttl = next_ttl, ends = least(next_ends, t + next_ttl),
          token = greatest(k.token + 1, {p}micros(t)), others = k.others - 1, waiting = k.waiting - 1, changes = k.changes + 2
        WHERE k.name = p_name
        RETURNING 'R', NULL, NULL, {p}micros(t), NULL, k.others + 1, CASE WHEN next_channel IS NOT NULL THEN
          pg_notify(next_channel, 'G' || encode(next_id, 'hex') || ':' || k.token || ':' || {p}micros(t) || ':' || {p}micros(k.ends)) END
        INTO a.word, a.token, a.life, a.at, a.ahead, a.others, next_owner;
      RETURN a;
    END IF;
  END IF;
  a.word := 'N';
  keep := p_keep * interval '1 microsecond';
  n := {p}take(p_name, p_bury);
  IF n.name IS NULL THEN
    RETURN a;
  END IF;
  t := clock_timestamp();
  a.at := {p}micros(t);
  n := {p}settle(n, t);
  IF n.phase <> 0 AND n.id = p_id THEN
    a.word := 'R';
    IF n.phase <> 3 AND p_keep > 0 THEN
      n.phase := 3;
      n.ends := t + keep;
      n := {p}hint(n);
    ELSIF n.phase <> 3 THEN
      n := {p}tell(n, 'R', p_id, '');
      n := {p}clear(n, t);
    END IF;
  ELSE
    SELECT * INTO e FROM {p}entry o WHERE o.name = p_name AND o.id = p_id AND o.phase IN (1, 2, 3);
    IF FOUND THEN
      a.word := 'R';
      IF e.phase <> 3 AND p_keep > 0 THEN
        UPDATE {p}entry o SET phase = 3, ends = t + keep WHERE o.name = p_name AND o.id = p_id;
        IF n.alone = p_id THEN
          n.alone := NULL;
        END IF;
        n.earliest := least(n.earliest, t + keep);
        n := {p}hint(n);
      ELSIF e.phase <> 3 THEN
        n := {p}remove(n, e);
        n := {p}tell(n, 'R', p_id, '');
      END IF;
    END IF;
  END IF;
  IF p_bury THEN
    n := {p}bury(n, p_id, t);
  END IF;
  n := {p}admit(n, t);
  a.others := n.others + CASE WHEN n.phase <> 0 THEN 1 ELSE 0 END;
  PERFORM {p}put(n);
  RETURN a;
END $$;

-- Undoes a request, whatever became of it, and keeps a copy of it that is on its way from being heard.
CREATE FUNCTION {p}abandon(p_name bytea, p_id bytea) RETURNS {p}answer LANGUAGE plpgsql AS $$
DECLARE
  n {p}name;
  e {p}entry;
  a {p}answer;
  t timestamptz;
BEGIN
  a.word := 'N';
  n := {p}take(p_name, true);
  t := clock_timestamp();
  n := {p}settle(n, t);
  -- A minimum hold stands: it is owed to the others.
  IF n.phase IN (1, 2) AND n.id = p_id THEN
    a.word := 'G';
    a.token := n.token;
    n := {p}tell(n, 'R', p_id, '');
    n := {p}clear(n, t);
  ELSE
    SELECT * INTO e FROM {p}entry o WHERE o.name = p_name AND o.id = p_id AND o.phase <= 2;
    IF FOUND THEN
      n := {p}remove(n, e);
      IF e.phase = 0 THEN
        a.word := 'W';
        n := {p}hint(n);
      ELSE
        a.word := 'G';
        a.token := e.token;
        n := {p}tell(n, 'R', p_id, '');
      END IF;
    END IF;
  END IF;
  n := {p}bury(n, p_id, t);
  PERFORM {p}put({p}admit(n, t));
  RETURN a;
END $$;

-- Extends leases and places in the queue, many in one statement, each for itself. A lease that is over is not revived: somebody may have had it
-- meanwhile. None is made shorter.
--
-- All names are locked first, in one order, so two batches cannot wait for one another in a circle. Without `p_wait` a name that somebody has
-- locked just then is left out (B), and keeps none of the others waiting: whoever asks sends those again, and waits.
CREATE FUNCTION {p}renew(p_names bytea[], p_ids bytea[], p_queued boolean[], p_ttls bigint[], p_channel text, p_wait boolean)
RETURNS SETOF {p}renewed LANGUAGE plpgsql AS $$
DECLARE
  locked bytea[];
  whole boolean;
  t timestamptz;
  i record;
  n {p}name;
  o {p}name;
  s {p}step;
  r {p}renewed;
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION USING ERRCODE = 'DL001',
      MESSAGE = 'the locks of dlock need transactions of the isolation level read committed';
  END IF;
  IF p_wait THEN
    SELECT array_agg(l.name) INTO locked
      FROM (SELECT k.name FROM {p}name k WHERE k.name = ANY (p_names) ORDER BY k.name FOR UPDATE) l;
  ELSE
    SELECT array_agg(l.name) INTO locked
      FROM (SELECT k.name FROM {p}name k WHERE k.name = ANY (p_names) ORDER BY k.name FOR UPDATE SKIP LOCKED) l;
  END IF;
  locked := coalesce(locked, '{}');
  -- Nearly always. To look each name up in the list takes longer than all the rest.
  whole := cardinality(locked) = cardinality(p_names);
  t := clock_timestamp();
  RETURN QUERY
    UPDATE {p}name k SET phase = 2, ttl = q.ttl * interval '1 microsecond',
        ends = greatest(k.ends, t + q.ttl * interval '1 microsecond')
      FROM unnest(p_names, p_ids, p_queued, p_ttls) WITH ORDINALITY AS q (name, id, queued, ttl, item)
      WHERE k.name = q.name AND k.id = q.id AND NOT q.queued AND k.phase IN (1, 2) AND k.ends > t AND (whole OR k.name = ANY (locked))
      RETURNING q.item::integer, 'L'::text, k.token, {p}micros(k.ends - t), {p}micros(t), 0;
  RETURN QUERY
    UPDATE {p}entry k SET phase = 2, ttl = q.ttl * interval '1 microsecond',
        ends = greatest(k.ends, t + q.ttl * interval '1 microsecond')
      FROM unnest(p_names, p_ids, p_queued, p_ttls) WITH ORDINALITY AS q (name, id, queued, ttl, item)
      WHERE k.name = q.name AND k.id = q.id AND NOT q.queued AND k.phase IN (1, 2) AND k.ends > t AND (whole OR k.name = ANY (locked))
      RETURNING q.item::integer, 'L'::text, k.token, {p}micros(k.ends - t), {p}micros(t), 0;
  -- What is left: those that are queued, those that are gone, those that are locked by somebody else.
  FOR i IN
    SELECT q.item::integer AS item, q.name, q.id, q.queued, q.ttl * interval '1 microsecond' AS ttl,
        whole OR q.name = ANY (locked) AS ours, EXISTS (SELECT 1 FROM {p}name k WHERE k.name = q.name) AS there
      FROM unnest(p_names, p_ids, p_queued, p_ttls) WITH ORDINALITY AS q (name, id, queued, ttl, item)
      WHERE q.queued
        OR NOT (EXISTS (SELECT 1 FROM {p}name k WHERE k.name = q.name AND k.id = q.id AND k.phase = 2 AND k.ends > t
              AND (whole OR k.name = ANY (locked)))
          OR EXISTS (SELECT 1 FROM {p}entry k WHERE k.name = q.name AND k.id = q.id AND k.phase = 2 AND k.ends > t
              AND (whole OR k.name = ANY (locked))))
  LOOP
    r := NULL;
    r.item := i.item;
    r.word := 'N';
    r.at := {p}micros(t);
    IF NOT i.ours AND i.there THEN
      r.word := 'B';
    ELSIF i.ours THEN
      SELECT * INTO o FROM {p}name k WHERE k.name = i.name;
      n := {p}admit({p}settle(o, t), t);
      IF i.queued THEN
        s := {p}claim(n, i.id, i.ttl, p_channel, t);
        n := s.n;
        IF (s.a).word IN ('G', 'Q') THEN
          r.word := (s.a).word;
          r.token := (s.a).token;
          r.life := (s.a).life;
          r.ahead := (s.a).ahead;
        END IF;
      END IF;
      IF n IS DISTINCT FROM o THEN
        PERFORM {p}put(n);
      END IF;
    END IF;
    RETURN NEXT r;
  END LOOP;
END $$;

-- Turns a lease into another mode, with nobody in between. To share keeps the token; to be alone takes a new one, and nobody else may share then. Who
-- waits for that with another would wait for ever: the second one is told. The wish of the first counts for a ttl, since nobody says when it is given up.
CREATE FUNCTION {p}convert(p_name bytea, p_id bytea, p_share integer) RETURNS {p}answer LANGUAGE plpgsql AS $$
DECLARE
  n {p}name;
  e {p}entry;
  a {p}answer;
  t timestamptz;
BEGIN
  a.word := 'N';
  n := {p}take(p_name, false);
  IF n.name IS NULL THEN
    RETURN a;
  END IF;
  t := clock_timestamp();
  n := {p}admit({p}settle(n, t), t);
  a.at := {p}micros(t);
  IF n.phase IN (1, 2) AND n.id = p_id THEN
    IF p_share < 0 THEN
      n.phase := 2;
      n.ends := greatest(n.ends, t + n.ttl);
      a.word := 'G';
      a.token := n.token;
      a.life := {p}micros(n.ends - t);
    ELSIF n.classed > 0 AND n.class <> p_share THEN
      a.word := 'M';
      a.token := n.class;
    ELSE
      a.word := 'G';
      a.token := n.token;
      a.life := {p}micros(greatest(n.ends - t, n.ttl));
      INSERT INTO {p}entry (name, id, phase, share, priority, place, token, ttl, ends, owner)
        VALUES (p_name, p_id, 2, p_share, 5, 0, n.token, n.ttl, greatest(n.ends, t + n.ttl), n.owner);
      n.others := n.others + 1;
      n.held := 1;
      n.classed := n.classed + 1;
      n.class := p_share;
      n.earliest := least(n.earliest, n.ends, t + n.ttl);
      n := {p}tell_grant(n, p_id, p_share, n.token, n.ttl, n.owner);
      n := {p}clear(n, t);
    END IF;
  ELSE
    SELECT * INTO e FROM {p}entry o WHERE o.name = p_name AND o.id = p_id AND o.phase IN (1, 2);
    IF NOT FOUND THEN
      a.word := 'N';
    ELSIF p_share < 0 AND n.held > 1 THEN
      IF n.alone <> p_id AND n.alone_until > t THEN
        a.word := 'D';
      ELSE
        n.alone := p_id;
        n.alone_until := t + e.ttl;
        a.word := 'B';
      END IF;
    ELSIF p_share < 0 THEN
      n := {p}remove(n, e);
      n.token := greatest(n.token + 1, {p}micros(t));
      n.phase := 2;
      n.id := p_id;
      n.ttl := e.ttl;
      n.ends := greatest(e.ends, t + e.ttl);
      n.owner := e.owner;
      n := {p}tell_grant(n, p_id, -1, n.token, n.ends - t, n.owner);
      a.word := 'G';
      a.token := n.token;
      a.life := {p}micros(n.ends - t);
    ELSIF p_share <> e.share THEN
      a.word := 'M';
      a.token := e.share;
    ELSE
      e.ends := greatest(e.ends, t + e.ttl);
      UPDATE {p}entry o SET phase = 2, ends = e.ends WHERE o.name = p_name AND o.id = p_id;
      IF n.alone = p_id THEN
        n.alone := NULL;
      END IF;
      a.word := 'G';
      a.token := e.token;
      a.life := {p}micros(e.ends - t);
    END IF;
  END IF;
  PERFORM {p}put({p}admit(n, t));
  RETURN a;
END $$;

-- Raises the token of a lease that is held, and the name's last one. The floor of names that have no row rises before this row is deleted.
CREATE FUNCTION {p}raise(p_name bytea, p_id bytea, p_to bigint) RETURNS {p}answer LANGUAGE plpgsql AS $$
DECLARE
  n {p}name;
  a {p}answer;
  t timestamptz;
BEGIN
  a.word := 'N';
  n := {p}take(p_name, false);
  IF n.name IS NULL THEN
    RETURN a;
  END IF;
  t := clock_timestamp();
  n := {p}admit({p}settle(n, t), t);
  IF n.phase IN (1, 2) AND n.id = p_id THEN
    n.token := greatest(n.token, p_to);
    a.word := 'G';
    a.token := n.token;
  ELSE
    UPDATE {p}entry o SET token = greatest(o.token, p_to)
      WHERE o.name = p_name AND o.id = p_id AND o.phase IN (1, 2) RETURNING o.token INTO a.token;
    IF FOUND THEN
      n.token := greatest(n.token, p_to);
      a.word := 'G';
    END IF;
  END IF;
  PERFORM {p}put(n);
  RETURN a;
END $$;

-- Ends every lease of a name, for operators. The token of the answer is how many.
CREATE FUNCTION {p}force(p_name bytea) RETURNS {p}answer LANGUAGE plpgsql AS $$
DECLARE
  n {p}name;
  e {p}entry;
  a {p}answer;
  t timestamptz;
BEGIN
  a.word := 'F';
  a.token := 0;
  n := {p}take(p_name, false);
  IF n.name IS NULL THEN
    RETURN a;
  END IF;
  t := clock_timestamp();
  n := {p}settle(n, t);
  IF n.phase <> 0 THEN
    a.token := 1;
    n := {p}tell(n, 'F', n.id, '');
    n := {p}clear(n, t);
  END IF;
  FOR e IN SELECT * FROM {p}entry o WHERE o.name = p_name AND o.phase IN (1, 2, 3) ORDER BY o.token LOOP
    a.token := a.token + 1;
    n := {p}remove(n, e);
    n := {p}tell(n, 'F', e.id, '');
  END LOOP;
  PERFORM {p}put({p}admit(n, t));
  RETURN a;
END $$;

-- Has the changes of a name told on a channel, for as long; nought ends it, and less than that keeps a copy of the wish that is on its way from
-- being heard. The word says whether they have been told without a gap (K, and behind it what stands in the row), are from now on (B), or are not since it has ended (A); the token is the
-- number of the last one.
CREATE FUNCTION {p}listen(p_name bytea, p_id bytea, p_channel text, p_for bigint) RETURNS {p}answer LANGUAGE plpgsql AS $$
DECLARE
  n {p}name;
  e {p}entry;
  a {p}answer;
  t timestamptz;
  last timestamptz;
BEGIN
  a.word := 'B';
  n := {p}take(p_name, p_for <> 0);
  IF n.name IS NULL THEN
    RETURN a;
  END IF;
  t := clock_timestamp();
  last := t + p_for * interval '1 microsecond';
  n := {p}admit({p}settle(n, t), t);
  SELECT * INTO e FROM {p}entry o WHERE o.name = p_name AND o.id = p_id;
  IF p_for <= 0 THEN
    IF e.phase = 4 THEN
      n := {p}remove(n, e);
    END IF;
    IF p_for < 0 THEN
      n := {p}bury(n, p_id, t);
    END IF;
  ELSIF e.phase = 5 THEN
    a.word := 'A';
  ELSIF e.phase = 4 THEN
    a.word := 'K' || coalesce(e.owner, '');
    UPDATE {p}entry o SET ends = last, owner = NULL WHERE o.name = p_name AND o.id = p_id;
  ELSE
    INSERT INTO {p}entry (name, id, phase, share, priority, place, ttl, ends, channel)
      VALUES (p_name, p_id, 4, -1, 0, 0, last - t, last, p_channel);
    n.others := n.others + 1;
    n.watching := n.watching + 1;
    n.earliest := least(n.earliest, last);
  END IF;
  a.token := n.changes;
  a.at := {p}micros(t);
  PERFORM {p}put(n);
  RETURN a;
END $$;

-- Deletes names that nobody has used for as long, at most so many, unless somebody did so in the last half of that time; answers how many.
--
-- A name that is made anew has to begin above where it ended. So the floor rises to the tokens of all dead names, and only those go that were below the floor by the
-- sweep before, which ended half of that time ago or longer. Whoever makes a row reads floor and clock as its statement begins: for a token to fall that statement would
-- have to have begun before the end of that sweep and to have waited since, at a row that somebody else had locked; which nothing does that waits for no longer than
-- `lock_timeout` (the backend's `lock_wait`, or what the role has behind a pooler), if that is shorter. And no token is less than the clock, so it would fall only where
-- it had been raised above the clock, or where the clock was set back.
--
-- The row of `meta` is locked all the time, so floors rise one after another. A name that is locked is in use, and is left alone. A token that was raised very far does
-- not raise the floor, or new names would begin there and soon have none left; such a name keeps its row.
CREATE FUNCTION {p}sweep(p_age bigint, p_most integer) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  t timestamptz;
  age interval := p_age * interval '1 microsecond';
  n {p}name;
  many bigint := 0;
  above bigint;
BEGIN
  UPDATE {p}meta m SET swept = clock_timestamp() WHERE m.swept < clock_timestamp() - age / 2 RETURNING m.token_floor INTO above;
  IF NOT FOUND THEN
    RETURN 0;
  END IF;
  t := clock_timestamp();
  -- First what dead waiters and tombstones have left.
  FOR n IN SELECT * FROM {p}name k WHERE k.others > 0 AND k.earliest < t - age ORDER BY k.name LIMIT p_most FOR UPDATE SKIP LOCKED LOOP
    PERFORM {p}put({p}admit({p}settle(n, t), t));
  END LOOP;
  WITH dead AS (
    SELECT k.name FROM {p}name k WHERE k.others = 0 AND k.ends < t - age AND k.token <= above LIMIT p_most FOR UPDATE SKIP LOCKED
  ), gone AS (
    DELETE FROM {p}name k USING dead d WHERE k.name = d.name RETURNING 1
  )
  SELECT count(*) INTO many FROM gone;
  UPDATE {p}meta m SET swept = clock_timestamp(), token_floor = greatest(m.token_floor,
    (SELECT max(k.token) FROM {p}name k WHERE k.others = 0 AND k.ends < t - age AND k.token < 4611686018427387904));
  RETURN many;
END $$;
