-- Version 1. {p} is the schema and the prefix, {n} the prefix alone (an index is in the schema of its table),
-- {schema} the name of the schema as a text.
--
-- Every change of a name first locks its row in `name`, and reads everything else in later statements, so
-- that under `read committed` it sees what the change before has committed. Several names are locked in the
-- order of their bytes. No lock is kept across a round trip.
--
-- Invariants: while `phase` of a name is not 0 it has no shared holder (`held` = 0). `others` is the number
-- of its rows in `entry`: while it is 0 the row in `name` is the whole state, which the fast paths rely on.
-- `earliest` is not after the end of any entry.

DO $$ BEGIN
  -- `IF NOT EXISTS` of the statement itself needs the right to create schemas, even if it exists.
  IF NOT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = {schema}) THEN
    EXECUTE format('CREATE SCHEMA %I', {schema});
  END IF;
END $$;

CREATE TABLE {p}meta (
  only_row smallint PRIMARY KEY CHECK (only_row = 1),
  schema_version integer NOT NULL,
  -- No name without a row was ever granted a larger token.
  token_floor bigint NOT NULL,
  -- When the last sweep for dead names ran.
  swept timestamptz NOT NULL
);
INSERT INTO {p}meta VALUES (1, 0, 0, clock_timestamp());

CREATE TABLE {p}name (
  name bytea PRIMARY KEY,
  -- The exclusive holder: 0 none, 1 offered to a waiter, 2 held, 3 kept by a minimum hold.
  phase smallint NOT NULL DEFAULT 0,
  -- The last token that was granted; during an exclusive hold, the holder's.
  token bigint NOT NULL,
  -- When that lease ends; without one, since when there is none.
  ends timestamptz NOT NULL DEFAULT clock_timestamp(),
  ttl interval NOT NULL DEFAULT interval '0',
  id bytea,
  owner text,
  -- Rows in entry, and among them the shared holders, the waiters, the watches, and all of a shared mode.
  others integer NOT NULL DEFAULT 0,
  held integer NOT NULL DEFAULT 0,
  waiting integer NOT NULL DEFAULT 0,
  watching integer NOT NULL DEFAULT 0,
  classed integer NOT NULL DEFAULT 0,
  -- The class of the last: 0 readers, n permits of n.
  class integer NOT NULL DEFAULT 0,
  arrivals bigint NOT NULL DEFAULT 0,
  -- Numbers the changes of the holders, without a gap; and other changes that waiters should look at.
  changes bigint NOT NULL DEFAULT 0,
  hints bigint NOT NULL DEFAULT 0,
  earliest timestamptz NOT NULL DEFAULT 'infinity',
  -- The shared holder that wants to upgrade, and until when that counts.
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
  -- The channel of its client.
  channel text,
  PRIMARY KEY (name, id)
) WITH (fillfactor = 70);
CREATE INDEX {n}queue ON {p}entry (name, place) WHERE phase = 0;
CREATE INDEX {n}holder ON {p}entry (name) WHERE phase IN (1, 2, 3);
CREATE INDEX {n}watch ON {p}entry (name) WHERE phase = 4;

-- The outcome, the token, microseconds (of life, or until it is worth asking again), the server's time in
-- microseconds since 1970, how many are ahead, and how many others there are afterwards: rows in entry (a
-- waiter or sharer counts itself), and after a release the exclusive holder.
CREATE TYPE {p}answer AS (word text, token bigint, life bigint, at bigint, ahead integer, others integer);
CREATE TYPE {p}renewed AS (item integer, word text, token bigint, life bigint, at bigint, ahead integer);
CREATE TYPE {p}step AS (n {p}name, a {p}answer, t timestamptz);

