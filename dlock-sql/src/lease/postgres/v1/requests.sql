-- Requests a lock. Idempotent in the id: a repeated request finds its own hold or place, a late copy of an
-- abandoned one the tombstone.
CREATE FUNCTION {p}attempt(p_name bytea, p_id bytea, p_share integer, p_ttl bigint, p_queue bigint,
  p_priority integer, p_channel text, p_owner text) RETURNS {p}answer LANGUAGE plpgsql AS $$
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
  -- Calling them takes longer than seeing that there is nothing to do. (With a null name everything is null:
  -- then they are called, to be compiled.)
  IF (n.ends > t AND n.earliest > t AND n.phase <> 0) IS NOT TRUE THEN
    n := {p}admit({p}settle(n, t), t);
  END IF;
  s := {p}claim(n, p_id, queue, p_channel, t);
  n := s.n;
  a := s.a;
  IF a.word IS NULL AND p_share >= 0 AND n.classed > 0 AND n.class <> p_share THEN
    a.word := 'M'; a.token := n.class;
  END IF;
  IF a.word IS NULL THEN
    spot := (10 - p_priority)::bigint * 281474976710656 + n.arrivals + 1;
    IF n.waiting > 0 THEN
      SELECT o.place INTO head FROM {p}entry o WHERE o.name = p_name AND o.phase = 0 ORDER BY o.place LIMIT 1;
    END IF;
    -- Only the head of the queue is ever granted. A request that does not queue overtakes no waiter.
    IF {p}admissible(n, p_share) AND (head IS NULL OR (p_queue > 0 AND spot < head)) THEN
      n.token := greatest(n.token + 1, {p}micros(t));
      IF p_share < 0 THEN
        n.phase := 2; n.id := p_id; n.ttl := life; n.ends := t + life; n.owner := p_owner;
      ELSE
        INSERT INTO {p}entry (name, id, phase, share, priority, place, token, ttl, ends, owner, channel)
          VALUES (p_name, p_id, 2, p_share, p_priority, spot, n.token, life, t + life, p_owner, p_channel);
        n.others := n.others + 1; n.held := n.held + 1; n.classed := n.classed + 1; n.class := p_share;
        n.earliest := least(n.earliest, t + life);
      END IF;
      n := {p}tell_grant(n, p_id, p_share, n.token, life, p_owner);
      a.word := 'G'; a.token := n.token; a.life := p_ttl;
    ELSIF p_queue = 0 THEN
      a.word := 'H'; a.life := {p}recheck(n, t);
    ELSE
      INSERT INTO {p}entry (name, id, phase, share, priority, place, ttl, ends, owner, channel)
        VALUES (p_name, p_id, 0, p_share, p_priority, spot, life, t + queue, p_owner, p_channel);
      n.arrivals := n.arrivals + 1; n.others := n.others + 1; n.waiting := n.waiting + 1;
      IF p_share >= 0 THEN
        n.classed := n.classed + 1; n.class := p_share;
      END IF;
      n.earliest := least(n.earliest, t + queue);
      a.word := 'Q'; a.life := {p}recheck(n, t);
      SELECT count(*) INTO a.ahead
        FROM (SELECT 1 FROM {p}entry o WHERE o.name = p_name AND o.phase = 0 AND o.place < spot LIMIT 64) s;
    END IF;
  END IF;
  a.others := n.others;
  PERFORM {p}put(n);
  RETURN a;
END $$;

-- Ends a lease, at once or after a minimum hold, and hands the lock to the next waiter in the same step.
--
-- Most releases are simple: the exclusive holder releases, the head of the queue wants it exclusively, there
-- is no watch, and nothing has expired. Then three statements have the effect of `settle`, `tell`, `clear`
-- and `admit`, which take twice as long, since PL/pgSQL sets up each of their expressions anew in each
-- transaction. In other cases the three change nothing. (With a null name they run as well, and find nothing:
-- that has them planned.)
CREATE FUNCTION {p}release(p_name bytea, p_id bytea, p_keep bigint, p_bury boolean)
RETURNS {p}answer LANGUAGE plpgsql AS $$
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
  PERFORM 1 FROM {p}name k WHERE k.name = p_name AND k.id = p_id AND k.phase IN (1, 2) AND k.waiting > 0
    AND k.watching = 0 AND k.ends > clock_timestamp() AND k.earliest > clock_timestamp()
    AND p_keep = 0 AND NOT p_bury FOR UPDATE;
  IF FOUND OR p_name IS NULL THEN
    -- The clock once more: the statement may have waited for the name.
    DELETE FROM {p}entry d
      WHERE d.ctid = (SELECT o.ctid FROM {p}entry o WHERE o.name = p_name AND o.phase = 0
          ORDER BY o.place LIMIT 1)
        AND d.share < 0 AND d.ends > clock_timestamp()
      RETURNING d.id, d.ttl, d.ends, d.owner, d.channel, clock_timestamp()
      INTO next_id, next_ttl, next_ends, next_owner, next_channel, t;
    IF FOUND OR p_name IS NULL THEN
      UPDATE {p}name k SET phase = 1, id = next_id, owner = next_owner, ttl = next_ttl,
          ends = least(next_ends, t + next_ttl), token = greatest(k.token + 1, {p}micros(t)),
          others = k.others - 1, waiting = k.waiting - 1, changes = k.changes + 2
        WHERE k.name = p_name
        RETURNING 'R', NULL, NULL, {p}micros(t), NULL, k.others + 1, CASE WHEN next_channel IS NOT NULL THEN
          pg_notify(next_channel, 'G' || encode(next_id, 'hex') || ':' || k.token || ':' ||
            {p}micros(t) || ':' || {p}micros(k.ends)) END
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
  e := {p}find(n, p_id);
  IF e.phase IN (1, 2, 3) THEN
    a.word := 'R';
    IF e.phase <> 3 AND p_keep > 0 THEN
      IF n.id = p_id THEN
        n.phase := 3; n.ends := t + keep;
      ELSE
        UPDATE {p}entry o SET phase = 3, ends = t + keep WHERE o.name = p_name AND o.id = p_id;
        IF n.alone = p_id THEN
          n.alone := NULL;
        END IF;
        n.earliest := least(n.earliest, t + keep);
      END IF;
      n := {p}hint(n);
    ELSIF e.phase <> 3 THEN
      n := {p}tell({p}remove(n, e, t), 'R', p_id, '');
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

-- Undoes a request, whatever became of it. The tombstone keeps late copies of it from taking effect.
CREATE FUNCTION {p}abandon(p_name bytea, p_id bytea) RETURNS {p}answer LANGUAGE plpgsql AS $$
DECLARE
  s {p}step := {p}enter(p_name, true, false);
  n {p}name := s.n;
  a {p}answer := s.a;
  t timestamptz := s.t;
  e {p}entry := {p}find(n, p_id);
BEGIN
  IF e.phase = 0 THEN
    a.word := 'W';
    n := {p}hint({p}remove(n, e, t));
  -- A minimum hold stays: it is owed to the others.
  ELSIF e.phase <= 2 THEN
    a.word := 'G'; a.token := e.token;
    n := {p}tell({p}remove(n, e, t), 'R', p_id, '');
  END IF;
  n := {p}bury(n, p_id, t);
  PERFORM {p}put({p}admit(n, t));
  RETURN a;
END $$;

-- Extends leases and queue entries, many in one statement, each independently. An expired lease is not
-- revived: another may have held the lock meanwhile. None is shortened.
--
-- All names are locked first, in one order, so two batches cannot deadlock. Without `p_wait` a name that is
-- locked just then is left out (B), and delays none of the others: the client sends those again, and waits.
CREATE FUNCTION {p}renew(p_names bytea[], p_ids bytea[], p_queued boolean[], p_ttls bigint[],
  p_channel text, p_wait boolean)
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
      FROM (SELECT k.name FROM {p}name k WHERE k.name = ANY (p_names) ORDER BY k.name
        FOR UPDATE SKIP LOCKED) l;
  END IF;
  locked := coalesce(locked, '{}');
  -- Nearly always. Looking up each name in the list takes longer than all the rest.
  whole := cardinality(locked) = cardinality(p_names);
  t := clock_timestamp();
  RETURN QUERY
    UPDATE {p}name k SET phase = 2, ttl = q.ttl * interval '1 microsecond',
        ends = greatest(k.ends, t + q.ttl * interval '1 microsecond')
      FROM unnest(p_names, p_ids, p_queued, p_ttls) WITH ORDINALITY AS q (name, id, queued, ttl, item)
      WHERE k.name = q.name AND k.id = q.id AND NOT q.queued AND k.phase IN (1, 2) AND k.ends > t
        AND (whole OR k.name = ANY (locked))
      RETURNING q.item::integer, 'L'::text, k.token, {p}micros(k.ends - t), {p}micros(t), 0;
  RETURN QUERY
    UPDATE {p}entry k SET phase = 2, ttl = q.ttl * interval '1 microsecond',
        ends = greatest(k.ends, t + q.ttl * interval '1 microsecond')
      FROM unnest(p_names, p_ids, p_queued, p_ttls) WITH ORDINALITY AS q (name, id, queued, ttl, item)
      WHERE k.name = q.name AND k.id = q.id AND NOT q.queued AND k.phase IN (1, 2) AND k.ends > t
        AND (whole OR k.name = ANY (locked))
      RETURNING q.item::integer, 'L'::text, k.token, {p}micros(k.ends - t), {p}micros(t), 0;
  -- What is left: the queued, the gone, and those that another statement has locked.
  FOR i IN
    SELECT q.item::integer AS item, q.name, q.id, q.queued, q.ttl * interval '1 microsecond' AS ttl,
        whole OR q.name = ANY (locked) AS ours,
        EXISTS (SELECT 1 FROM {p}name k WHERE k.name = q.name) AS there
      FROM unnest(p_names, p_ids, p_queued, p_ttls) WITH ORDINALITY AS q (name, id, queued, ttl, item)
      WHERE q.queued
        OR NOT (EXISTS (SELECT 1 FROM {p}name k WHERE k.name = q.name AND k.id = q.id AND k.phase = 2
              AND k.ends > t AND (whole OR k.name = ANY (locked)))
          OR EXISTS (SELECT 1 FROM {p}entry k WHERE k.name = q.name AND k.id = q.id AND k.phase = 2
              AND k.ends > t AND (whole OR k.name = ANY (locked))))
  LOOP
    r := NULL;
    r.item := i.item; r.word := 'N'; r.at := {p}micros(t);
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
          r.token := (s.a).token; r.life := (s.a).life; r.ahead := (s.a).ahead;
        END IF;
      END IF;
      IF n IS DISTINCT FROM o THEN
        PERFORM {p}put(n);
      END IF;
    END IF;
    RETURN NEXT r;
  END LOOP;
END $$;

