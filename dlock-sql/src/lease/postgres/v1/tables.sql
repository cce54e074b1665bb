-- Version 1. {p} is the schema and the prefix, {n} the prefix alone (an index is in the schema of its table),
-- {schema} the name of the schema as a text.
--
-- Whoever changes a name locks its row in `name` first and reads everything else in later statements, so
-- under `read committed` it sees what the one before has committed. Several names are locked in the order of
-- their bytes. Nobody keeps a lock across a round trip.
--
-- Invariants: while `phase` of a name is not 0 it has no shared holder (`held` = 0). `others` is the number
-- of its rows in `entry`: while it is 0 the row in `name` is all there is, which is what the short statements
-- go by. `earliest` is not after the end of any entry.

DO $$ BEGIN
  -- `IF NOT EXISTS` of the statement itself wants the right to make schemas, be it there or not.
  IF NOT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = {schema}) THEN
    EXECUTE format('CREATE SCHEMA %I', {schema});
  END IF;
END $$;

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
  -- Of the exclusive holder: 0 none, 1 offered to a waiter who is to come, 2 held, 3 kept by a minimum hold.
  phase smallint NOT NULL DEFAULT 0,
  -- The last token that was granted. While somebody holds it alone: the holder's.
  token bigint NOT NULL,
  -- When that lease ends; where there is none, since when.
  ends timestamptz NOT NULL DEFAULT clock_timestamp(),
  ttl interval NOT NULL DEFAULT interval '0',
  id bytea,
  owner text,
  -- Rows in entry; of these the shared holders, the waiters, the watches, and all of a shared mode.
  others integer NOT NULL DEFAULT 0,
  held integer NOT NULL DEFAULT 0,
  waiting integer NOT NULL DEFAULT 0,
  watching integer NOT NULL DEFAULT 0,
  classed integer NOT NULL DEFAULT 0,
  -- Of these last: 0 readers, n permits of n.
  class integer NOT NULL DEFAULT 0,
  arrivals bigint NOT NULL DEFAULT 0,
  -- Changes of the holders, which have numbers without a gap; and of what else those who wait should look at.
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
  -- 0 queued, 1 offered, 2 held, 3 kept by a minimum hold, 4 a watch, 5 the tombstone of a late request.
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

-- What became of it, the token, microseconds (of life, or until it pays to ask again), the server's time in
-- microseconds since 1970, how many are ahead, and how many others are there after it: rows in entry (who
-- waits or shares counts itself), and after a release whoever has the name alone then.
CREATE TYPE {p}answer AS (word text, token bigint, life bigint, at bigint, ahead integer, others integer);
CREATE TYPE {p}renewed AS (item integer, word text, token bigint, life bigint, at bigint, ahead integer);
CREATE TYPE {p}step AS (n {p}name, a {p}answer, t timestamptz);

