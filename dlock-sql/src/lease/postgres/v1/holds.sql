-- Changes the mode of a lease in one step. A downgrade keeps the token; an upgrade gets a new one, and needs
-- the lock to have no other sharer. Two sharers that both wait to upgrade would wait for ever: the second one
-- is told. The wish of the first counts for a ttl, since giving up is not reported.
CREATE FUNCTION {p}convert(p_name bytea, p_id bytea, p_share integer) RETURNS {p}answer LANGUAGE plpgsql AS $$
DECLARE
  s {p}step := {p}enter(p_name, false, true);
  n {p}name := s.n;
  a {p}answer := s.a;
  t timestamptz := s.t;
  e {p}entry := {p}find(n, p_id);
BEGIN
  IF (e.phase IN (1, 2)) IS NOT TRUE THEN
    a.word := 'N';
  ELSIF p_share < 0 AND n.held > 1 THEN
    IF n.alone <> p_id AND n.alone_until > t THEN
      a.word := 'D';
    ELSE
      n.alone := p_id;
      n.alone_until := t + e.ttl;
      a.word := 'B';
    END IF;
  ELSIF p_share >= 0 AND n.classed > 0 AND n.class <> p_share THEN
    a.word := 'M'; a.token := n.class;
  ELSE
    e.ends := greatest(e.ends, t + e.ttl);
    IF p_share = e.share AND n.id = p_id THEN
      n.phase := 2; n.ends := e.ends;
    ELSIF p_share = e.share THEN
      UPDATE {p}entry o SET phase = 2, ends = e.ends WHERE o.name = p_name AND o.id = p_id;
      IF n.alone = p_id THEN
        n.alone := NULL;
      END IF;
    ELSE
      n := {p}remove(n, e, t);
      IF p_share < 0 THEN
        e.token := greatest(n.token + 1, {p}micros(t));
        n.token := e.token;
        n.phase := 2; n.id := p_id; n.ttl := e.ttl; n.ends := e.ends; n.owner := e.owner;
      ELSE
        INSERT INTO {p}entry (name, id, phase, share, priority, place, token, ttl, ends, owner)
          VALUES (p_name, p_id, 2, p_share, 5, 0, e.token, e.ttl, e.ends, e.owner);
        n.others := n.others + 1; n.held := 1; n.classed := n.classed + 1; n.class := p_share;
        n.earliest := least(n.earliest, e.ends);
      END IF;
      n := {p}tell_grant(n, p_id, p_share, e.token, e.ends - t, e.owner);
    END IF;
    a.word := 'G'; a.token := e.token; a.life := {p}micros(e.ends - t);
  END IF;
  PERFORM {p}put({p}admit(n, t));
  RETURN a;
END $$;

-- Raises the token of a held lease, and the name's last one. The floor for names without a row rises before
-- this row is deleted.
CREATE FUNCTION {p}raise(p_name bytea, p_id bytea, p_to bigint) RETURNS {p}answer LANGUAGE plpgsql AS $$
DECLARE
  s {p}step := {p}enter(p_name, false, true);
  n {p}name := s.n;
  a {p}answer := s.a;
  e {p}entry := {p}find(n, p_id);
BEGIN
  IF e.phase IN (1, 2) THEN
    a.word := 'G'; a.token := greatest(e.token, p_to);
    n.token := greatest(n.token, p_to);
    UPDATE {p}entry o SET token = a.token WHERE o.name = p_name AND o.id = p_id;
  END IF;
  PERFORM {p}put(n);
  RETURN a;
END $$;

-- Ends every lease of a name, for operators. The answer's token is their number.
CREATE FUNCTION {p}force(p_name bytea) RETURNS {p}answer LANGUAGE plpgsql AS $$
DECLARE
  s {p}step := {p}enter(p_name, false, false);
  n {p}name := s.n;
  a {p}answer := s.a;
  t timestamptz := s.t;
  e {p}entry;
BEGIN
  a.token := 0;
  IF n.phase <> 0 THEN
    a.token := 1;
    n := {p}tell(n, 'F', n.id, '');
    n := {p}clear(n, t);
  END IF;
  FOR e IN SELECT * FROM {p}entry o WHERE o.name = p_name AND o.phase IN (1, 2, 3) ORDER BY o.token LOOP
    a.token := a.token + 1;
    n := {p}tell({p}remove(n, e, t), 'F', e.id, '');
  END LOOP;
  PERFORM {p}put({p}admit(n, t));
  RETURN a;
END $$;

-- Fetches the changes of a watch, and keeps recording them for that long. Zero ends the watch, and a negative
-- time also refuses late copies of the request. The word says whether changes were recorded until now (K,
-- followed by them), are recorded from now on (B), or are not, since the watch has ended (A). The token is
-- the number of the last change, the life that of what ends first.
CREATE FUNCTION {p}listen(p_name bytea, p_id bytea, p_channel text, p_for bigint)
RETURNS {p}answer LANGUAGE plpgsql AS $$
DECLARE
  s {p}step := {p}enter(p_name, p_for <> 0, true);
  n {p}name := s.n;
  a {p}answer := s.a;
  t timestamptz := s.t;
  last timestamptz := t + p_for * interval '1 microsecond';
  e {p}entry;
BEGIN
  a.word := 'B';
  SELECT * INTO e FROM {p}entry o WHERE o.name = p_name AND o.id = p_id;
  IF p_for <= 0 THEN
    IF e.phase = 4 THEN
      n := {p}remove(n, e, t);
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
    n.others := n.others + 1; n.watching := n.watching + 1;
    n.earliest := least(n.earliest, last);
  END IF;
  a.token := n.changes;
  IF p_for > 0 THEN
    a.life := {p}micros(least(n.earliest, CASE WHEN n.phase <> 0 THEN n.ends END) - t);
  END IF;
  PERFORM {p}put(n);
  RETURN a;
END $$;

-- Deletes names that have been unused for that long, up to a number, unless a client did so in the last half
-- of that time; answers how many. The floor rises to the tokens of all dead names: see `lease/mod.rs`.
--
-- The row of `meta` stays locked, so floors rise one after another. A locked name is in use, and is skipped.
-- A token that was raised very far does not raise the floor, or new names would begin there and soon run out
-- of tokens; such a name keeps its row.
CREATE FUNCTION {p}sweep(p_age bigint, p_most integer) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  t timestamptz;
  age interval := p_age * interval '1 microsecond';
  n {p}name;
  many bigint := 0;
  above bigint;
BEGIN
  UPDATE {p}meta m SET swept = clock_timestamp() WHERE m.swept < clock_timestamp() - age / 2
    RETURNING m.token_floor INTO above;
  IF NOT FOUND THEN
    RETURN 0;
  END IF;
  t := clock_timestamp();
  -- First the entries of dead waiters and tombstones.
  FOR n IN SELECT * FROM {p}name k WHERE k.others > 0 AND k.earliest < t - age ORDER BY k.name
    LIMIT p_most FOR UPDATE SKIP LOCKED LOOP
    PERFORM {p}put({p}admit({p}settle(n, t), t));
  END LOOP;
  WITH dead AS (
    SELECT k.name FROM {p}name k WHERE k.others = 0 AND k.ends < t - age AND k.token <= above
      LIMIT p_most FOR UPDATE SKIP LOCKED
  ), gone AS (
    DELETE FROM {p}name k USING dead d WHERE k.name = d.name RETURNING 1
  )
  SELECT count(*) INTO many FROM gone;
  UPDATE {p}meta m SET swept = clock_timestamp(), token_floor = greatest(m.token_floor, (SELECT max(k.token)
    FROM {p}name k WHERE k.others = 0 AND k.ends < t - age AND k.token < 4611686018427387904));
  RETURN many;
END $$;
