//! The whole catalogue, so that reports can say what is *not* tested.
//!
//! A rule that has a test is described where it is declared; of the others the number, the sentence, and what
//! stands in the way are listed here. Numbers are never reused.

use crate::rule::{Access, Level};
use crate::rules;

/// A number of the catalogue.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Its number.
    pub id: &'static str,
    /// How binding it is.
    pub level: Level,
    /// In which phase it is to come.
    pub phase: u8,
    /// What the kit needs for it, besides the API.
    pub access: &'static [Access],
    /// The rule.
    pub statement: &'static str,
}

impl Entry {
    /// Why it has no test.
    pub fn reason(&self) -> String {
        if let Some((_, why)) = WAITING.iter().find(|(id, _)| *id == self.id) {
            return format!("no test yet: {why}");
        }
        format!("no test yet (phase {} of the catalogue)", self.phase)
    }
}

/// Rules that wait for something else than the means of the kit.
const WAITING: &[(&str, &str)] = &[(
    "16.04",
    "no backend hangs its leases on a session yet; the first that does (ZooKeeper, advisory locks) brings \
        the hook that ends one",
)];

/// Every number that has no test.
pub fn untested() -> impl Iterator<Item = &'static Entry> {
    ALL.iter().filter(|entry| rules::find(entry.id).is_none())
}

/// The rules without a test that a profile is not whole without: MUST, and of the first phase.
pub fn open() -> impl Iterator<Item = &'static Entry> {
    untested().filter(|entry| entry.level == Level::Must && entry.phase == 1)
}

/// Every number there is, with or without a test.
pub fn all() -> &'static [Entry] {
    ALL
}

const fn entry(
    id: &'static str,
    level: Level,
    phase: u8,
    access: &'static [Access],
    statement: &'static str,
) -> Entry {
    Entry {
        id,
        level,
        phase,
        access,
        statement,
    }
}

use Access::{A, C, H, P, S};
use Level::{May, Must, Should};

// One line each, as a table.
#[rustfmt::skip]
static ALL: &[Entry] = &[
    entry("1.01", Must, 1, &[A], "At most one live exclusive grant per name at any instant (owner-aware \
        leased-mutex history is linearizable; K clients, seeded holds)."),
    entry("1.02", Must, 1, &[C], "1.01 across separate processes, not only inside one client object."),
    entry("1.03", Must, 1, &[A], "On a free name, N simultaneous acquires yield exactly one winner (barrier \
        start, N=64, 200 rounds)."),
    entry("1.04", Must, 1, &[A], "Read-modify-write of an unsynchronised set under the lock loses no \
        element while no lease lapses."),
    entry("1.05", Must, 1, &[P], "A grant that is already over is never handed out: the call errs, or goes \
        on waiting within its deadline."),
    entry("1.06", Must, 1, &[A, C], "Grant ids are unique over clients, processes and restarts (1e5 ids, 8 \
        children, same start second)."),
    entry("1.07", Must, 1, &[A], "Without REENT, two handles of one client exclude one another exactly like \
        two clients."),
    entry("2.01", Must, 1, &[A], "`try_acquire` on a held name answers `Ok(None)` within the op bound; it \
        never waits for the holder."),
    entry("2.02", Must, 1, &[A], "`try_acquire` on a free, uncontended name succeeds; it never says held \
        where nobody holds."),
    entry("2.03", Must, 1, &[A], "A waiting acquire completes after release with no further call by the \
        application."),
    entry("2.04", Must, 1, &[A], "`Timeout` is returned not before the deadline, and not after the deadline \
        plus slack."),
    entry("2.05", Must, 1, &[A], "After `Timeout` nothing is held and nothing is queued: the next client \
        acquires at once."),
    entry("2.06", Must, 1, &[A], "Zero wait equals try; a deadline in the past has no side effect."),
    entry("2.07", Must, 1, &[A], "A grant that races the deadline ends as a live guard or as `Timeout` with \
        nothing held, never both or neither."),
    entry("2.08", Must, 1, &[A], "Invalid arguments (a ttl of zero or out of the declared range, a bad \
        name) fail with `InvalidInput` before any I/O and change nothing."),
    entry("2.09", Must, 1, &[A], "5,000 acquire/release cycles on one name and one client: no growth, no \
        failure."),
    entry("2.10", Must, 2, &[A], "Huge durations (Duration::MAX, 50 days) saturate or are refused; never \
        wrap to short."),
    entry("2.11", Must, 2, &[A], "Unbounded wait has no hidden timeout (holds 3x the largest internal \
        default the claim states)."),
    entry("2.12", Should, 2, &[P], "Uncontended acquire+release costs at most the claimed number of round \
        trips (proxy counts request/reply turns)."),
    entry("3.01", Must, 1, &[A], "A grant that is not renewed becomes acquirable by ttl + slack after its \
        last success."),
    entry("3.02", Must, 1, &[A], "A lease is not grantable to another before the send time of its last \
        successful acquire or renewal plus its ttl, less the skew; a provisional grant counts from its \
        confirmation."),
    entry("3.03", Must, 1, &[P], "The guard's own deadline is computed from the request SEND time \
        (monotonic) minus the drift margin, never from the reply."),
    entry("3.04", Must, 1, &[A], "`is_valid`/`remaining` are false/0 past the deadline with no I/O and with \
        the executor blocked for > ttl."),
    entry("3.05", Must, 2, &[C], "Client validity uses a monotonic clock: wall-clock step of +-1 h in the \
        child changes nothing."),
    entry("3.06", Must, 1, &[A], "Release or renew through an expired guard answers `Lost` and leaves the \
        successor untouched."),
    entry("3.07", Must, 1, &[A], "Each acquire's ttl is its own (two ttls alternating on one name)."),
    entry("3.08", Must, 1, &[A], "A waiter gets the lock by ttl + slack when the holder just vanishes."),
    entry("3.09", Must, 2, &[P], "A waiter whose own lease/session lapsed while queued is never granted."),
    entry("3.10", Must, 2, &[A], "Backend ttl granularity is declared; finer requests round UP."),
    entry("3.11", Must, 1, &[A], "The smallest declared ttl works; smaller is refused, never immortal."),
    entry("3.12", Must, 2, &[A], "Across any hand-over by expiry: previous holder's local deadline <= next \
        holder's acquire return (+ skew). The belief intervals do not overlap."),
    entry("3.13", Must, 2, &[P], "An acquire whose reply was lost and that is sent again answers the \
        remaining life of its grant: the local deadline is not past the store's."),
    entry("4.01", Must, 1, &[A], "When `release` answers Ok, with no waiter queued and no minimum hold, \
        another client's `try_acquire` succeeds at once."),
    entry("4.02", Must, 1, &[A], "Release is checked against the GRANT, not the name, client or session: a \
        stale guard cannot free a later grant of the same client."),
    entry("4.03", Must, 1, &[A], "A second release is impossible by type or answers `Lost` with no effect."),
    entry("4.04", Must, 2, &[P], "A release whose reply was lost can be retried: it answers Ok, `Lost` or \
        `Unknown` and never frees a successor."),
    entry("4.05", Must, 1, &[A, P], "Release tells apart: released, `Lost`, and `Unknown` (transport)."),
    entry("4.06", Must, 1, &[P], "If release fails in transport the lock still lapses by ttl."),
    entry("4.07", Must, 1, &[A], "Lock and unlock run on the same backend session under a busy pool."),
    entry("4.08", Must, 1, &[A], "Dropping a guard outside any runtime, on any thread, in a panic unwind: \
        no panic, no block."),
    entry("4.09", Must, 1, &[A], "A dropped guard's lock is free by ttl + slack at the latest; renewal ends \
        with the guard."),
    entry("4.10", Should, 2, &[A], "With a spawner given, drop frees within the claimed prompt bound."),
    entry("4.11", Must, 1, &[A], "One release hands over to exactly one waiter."),
    entry("4.12", Must, 2, &[A], "A leaked guard (`mem::forget`) without auto-renew lapses by ttl; with \
        auto-renew the documented behaviour holds."),
    entry("4.13", Must, 2, &[A], "A released lock stays taken until its minimum hold is over, and is free \
        promptly after it."),
    entry("5.01", Must, 1, &[A], "Renew of a live grant postpones expiry to renew + ttl."),
    entry("5.02", Must, 1, &[A], "Renew never shortens validity already promised, and is a reset, not an \
        addition."),
    entry("5.03", Must, 1, &[A], "Renew after expiry answers Lost even if nobody else holds it now (another \
        may have come and gone)."),
    entry("5.04", Must, 1, &[A], "Renew by a stale guard never extends the successor."),
    entry("5.05", Must, 1, &[A], "Renew after release answers `Lost`."),
    entry("5.06", Must, 1, &[A], "Renew racing release of one grant always ends released."),
    entry("5.07", Must, 1, &[P], "Local deadline moves only on a confirmed renew."),
    entry("5.08", Must, 1, &[A], "Renew keeps grant id and fencing token."),
    entry("5.09", Must, 1, &[A], "Auto-renew keeps a lock for >= 10 ttl with no fault."),
    entry("5.10", Must, 1, &[A, P], "Auto-renew stops on release, drop and loss: no renew traffic and no \
        re-creation afterwards."),
    entry("5.11", Must, 1, &[P], "A fault shorter than ttl - margin does not lose the lock."),
    entry("5.12", Should, 2, &[P], "Renew period <= ttl/2, with jitter (proxy counts)."),
    entry("5.13", May, 3, &[A], "A configured maximum hold is honoured and reported as the loss reason."),
    entry("5.14", Must, 2, &[A], "1,000 guards of one client all stay renewed under load."),
    entry("6.01", Must, 1, &[P], "If renewals fail, the loss signal fires no later than the local deadline."),
    entry("6.02", Must, 1, &[H, S], "On a definite refusal by the store the loss signal fires within one \
        renew period plus slack."),
    entry("6.03", Must, 1, &[A], "It does not fire after a normal release."),
    entry("6.04", Must, 1, &[P], "It is sticky: a late observer sees it at once."),
    entry("6.05", Must, 1, &[A], "It does not fire in a healthy hold of >= 20 ttl under load."),
    entry("6.06", Must, 1, &[P], "All observers get it."),
    entry("6.07", Must, 1, &[P], "A lost guard never becomes valid again, even if a delayed renew Ok \
        arrives."),
    entry("6.08", Must, 1, &[P], "It works when the application never polls the guard (background) or the \
        claim says \"passive\" and the sync check tells the truth."),
    entry("6.09", Should, 2, &[P, H], "It carries a reason: expired, refused, session lost, backend gone, \
        closed."),
    entry("7.01", Must, 1, &[A], "Every exclusive grant carries a token; none is 0/absent."),
    entry("7.02", Must, 1, &[A], "Tokens strictly increase in grant order over exclusive grants of a name; \
        shared tokens lie between their neighbours."),
    entry("7.03", Must, 1, &[A], "Tokens strictly increase across release."),
    entry("7.04", Must, 1, &[A], "Tokens strictly increase across expiry: the counter does not live in the \
        expiring record."),
    entry("7.05", Must, 1, &[A], "Tokens strictly increase across clients and processes."),
    entry("7.06", Must, 2, &[H], "Tokens strictly increase across a restart of the store, when claimed; \
        without the claim the report says that they are not durable."),
    entry("7.07", Must, 2, &[H, S], "Tokens strictly increase across wall-clock steps on server or client."),
    entry("7.08", Must, 2, &[H, S], "Tokens strictly increase past 2^31, 2^32 and 2^53."),
    entry("7.09", Must, 1, &[A], "Token is taken atomically with the grant: a larger token never belongs to \
        an earlier grant, burnt tokens are allowed, doubles are not."),
    entry("7.10", Must, 2, &[A], "Re-entrant acquires return the same token."),
    entry("7.11", Must, 2, &[A], "Shared grants: last write token <= read token < next write token (or the \
        claim says \"reads unfenced\")."),
    entry("7.12", Must, 1, &[A], "The fenced resource refuses a token below the highest seen, accepts the \
        same one again, and refuses neither of two live readers."),
    entry("7.13", Must, 1, &[A], "The check and the write of a fenced resource are one atomic step; a bare \
        `admit` is advisory."),
    entry("7.14", Must, 2, &[H], "It remembers the highest token across restart."),
    entry("7.15", Must, 1, &[C], "Zombie story: A stopped > ttl, B granted and writes, A resumes and \
        writes: A is refused."),
    entry("7.16", Should, 3, &[A], "Token storage for dead names is bounded or its growth declared."),
    entry("8.01", Must, 1, &[A], "No lost wake-up: 10,000 ping-pong hand-overs, none slower than slack."),
    entry("8.02", Should, 1, &[A], "Release-to-grant p99 <= claimed bound."),
    entry("8.03", Should, 2, &[A], "Under churn no waiter starves beyond the claimed factor of the mean \
        wait."),
    entry("8.04", Must, 2, &[A], "Grants follow enqueue order (enqueue confirmed by INFO or spaced >= 10 \
        RTT)."),
    entry("8.05", Must, 2, &[A], "try/new acquires cannot overtake a non-empty queue."),
    entry("8.06", Must, 2, &[C], "A dead or cancelled head does not block the queue beyond the bound."),
    entry("8.07", Must, 2, &[A], "A LIVE waiter keeps its place however long it waits."),
    entry("8.08", Must, 2, &[A], "The highest priority waiter is next; ties are FIFO."),
    entry("8.09", Should, 3, &[A], "Low priority is served within the declared aging bound."),
    entry("8.10", Should, 3, &[P], "One release wakes O(1) waiters (no herd; proxy counts requests)."),
    entry("8.11", Must, 2, &[A], "500 waiters on one name (or as many as the declared limit allows) are \
        each granted exactly once."),
    entry("8.12", Must, 1, &[A], "Cancelling random waiters during hand-over never swallows the wake-up."),
    entry("9.01", Must, 1, &[A], "`acquire`/`try`/`acquire_until` dropped at ANY poll: the name is \
        acquirable by ttl + slack, no queue entry remains."),
    entry("9.02", Should, 1, &[A], "An operation dropped at any poll leaves nothing within the claimed \
        prompt bound."),
    entry("9.03", Must, 1, &[A], "`release` dropped at any poll: released, or lapses by ttl, and renewal \
        has stopped."),
    entry("9.04", Must, 1, &[A], "`renew` dropped at any poll: local validity is old or new, never beyond \
        the server's."),
    entry("9.05", Must, 1, &[A], "After each drop the client is still sane: 10 further operations get their \
        own replies."),
    entry("9.06", Must, 2, &[A], "10,000 subscribe/drop rounds leak no descriptor, task or server \
        registration."),
    entry("9.07", Must, 1, &[A], "Closing a client with operations in flight ends them with `Closed`, and \
        its guards signal loss; dropping the client does not."),
    entry("9.08", Must, 2, &[A], "Executor shut down mid-operation: no deadlock, no panic; locks lapse."),
    entry("9.09", Must, 1, &[A], "All futures are Send, guards are Send + Sync + 'static, and a future may \
        move threads between polls."),
    entry("9.10", Must, 1, &[A], "No busy poll: a blocked acquire is polled <= bound per second and \
        tolerates spurious polls and waker changes."),
    entry("9.11", Must, 2, &[A], "Works on every executor the facade claims (tokio mt, tokio ct, smol, bare \
        block_on)."),
    entry("10.01", Must, 2, &[A], "The owner may acquire up to the declared depth; beyond it \
        `LimitReached`."),
    entry("10.02", Must, 2, &[A], "The lock is free only after as many releases."),
    entry("10.03", Must, 2, &[A], "Others stay excluded at every depth."),
    entry("10.04", Must, 2, &[A], "Loss ends all levels at once."),
    entry("10.05", Must, 2, &[P], "A retried acquire does not raise the count."),
    entry("10.06", Must, 2, &[A], "Owner identity is the declared key, never thread or task."),
    entry("11.01", Must, 1, &[A], "Readers share."),
    entry("11.02", Must, 1, &[A], "A writer excludes readers and writers; readers exclude writers."),
    entry("11.03", Must, 1, &[A], "Only the LAST reader's release admits the writer."),
    entry("11.04", Must, 1, &[A], "One reader's expiry frees only its own share."),
    entry("11.05", Must, 1, &[A], "A reader's release is per grant."),
    entry("11.06", Should, 2, &[A], "Under the declared policy neither writers nor readers starve \
        (overlapping-reader storm; writer storm)."),
    entry("11.07", Must, 2, &[A], "With writer preference, new readers wait while a writer waits."),
    entry("11.08", Must, 2, &[A], "A cancelled or timed-out waiting writer stops blocking readers."),
    entry("11.09", Must, 2, &[A], "Mixed queue W-held, R-wait, W-wait drains completely."),
    entry("11.10", Must, 3, &[A], "Downgrade is atomic: no writer in between."),
    entry("11.11", Must, 3, &[A], "Two upgraders never deadlock: one wins or gets WouldDeadlock."),
    entry("11.12", Must, 3, &[A], "A failed upgrade keeps the shared grant."),
    entry("11.13", Must, 2, &[A], "Write-acquire while holding read, without UPGR, ends by deadline or \
        WouldDeadlock."),
    entry("11.14", Must, 1, &[A], "A cancelled or timed-out waiter in front admits at once those behind it \
        who are now admissible; one release admits every admissible reader."),
    entry("11.15", Must, 1, &[A], "A mismatched permit class or count is refused before it queues."),
    entry("12.01", Must, 2, &[A], "Snapshot first, then every change: no gap between the two."),
    entry("12.02", Must, 2, &[A], "Per name, events are in grant order (tokens non-decreasing)."),
    entry("12.03", Must, 2, &[A], "Coalescing only as declared; the final state is always delivered."),
    entry("12.04", Must, 2, &[A], "Expiry is reported within the bound."),
    entry("12.05", Must, 2, &[P], "After a cut the stream resyncs with a marker or ends with an error; \
        never silent."),
    entry("12.06", Must, 2, &[P], "No state is reported that never was (dead session's data; CURATOR-604 \
        family)."),
    entry("12.07", Must, 3, &[A], "A slow consumer costs bounded memory and sees Lagged."),
    entry("12.08", Must, 2, &[A], "Watching does not queue, hold or slow the lock."),
    entry("12.09", Should, 3, &[A], "A hand-over A to B is visible even if never free."),
    entry("12.10", Must, 2, &[A], "inspect shows every holder, with mode, token, label and rest of the \
        lease, and nobody else."),
    entry("12.11", Must, 2, &[A], "force_release ends every hold and says how many; the next waiter is \
        granted; late releases harm nobody."),
    entry("13.01", Must, 1, &[A], "Names of 1 byte up to the declared maximum (>= 1 KiB) work."),
    entry("13.02", Must, 1, &[A], "Different bytes, different locks: last-byte difference at maximum \
        length."),
    entry("13.03", Must, 1, &[A], "Names that collide under CRC32, FNV-1a-32, Java hashCode, murmur3-32 or \
        PostgreSQL's `hashtext` are different locks."),
    entry("13.04", Must, 1, &[A], "Case matters."),
    entry("13.05", Must, 1, &[A], "Trailing space, tab, CR/LF and control characters are significant or \
        refused; never folded."),
    entry("13.06", Must, 1, &[A], "NFC and NFD, non-BMP, RTL and zero-width names are distinct and work."),
    entry("13.07", Must, 1, &[A], "`a`, `a/b`, `/a`, `a//b`, `.`, `..` are independent locks: no \
        parent/child effect."),
    entry("13.08", Must, 1, &[A], "Glob and hash-tag characters `* ? [ ] { }` have no effect on other \
        names."),
    entry("13.09", Must, 1, &[A], "SQL, Lua, RESP (CRLF), shell and printf payloads are plain names; \
        sentinel locks and tables survive."),
    entry("13.10", Must, 1, &[A], "Empty and oversize names answer `InvalidInput` before any I/O; they are \
        never hashed silently."),
    entry("13.11", Must, 2, &[A], "Namespaces isolate: (`n`,`a:b`) and (`n:a`,`b`) differ."),
    entry("13.12", Must, 2, &[A], "10,000 names (or as many as the declared limit allows) are held at once \
        by one client."),
    entry("13.13", Should, 3, &[A], "Dead names leave no permanent backend state, or the claim says so."),
    entry("13.14", Must, 3, &[A], "Owner label up to its declared limit round-trips intact."),
    entry("13.15", Must, 2, &[A], "Declared limits are enforced as LimitReached at exactly the declared \
        value."),
    entry("14.01", Must, 1, &[A], "100 contended names do not delay an uncontended one beyond the bound."),
    entry("14.02", Must, 1, &[A], "One client object carries >= 256 concurrent mixed operations correctly."),
    entry("14.03", Must, 1, &[A], "A client waiting for X can still release X itself from another task."),
    entry("14.04", Must, 1, &[A], "Clones share no ownership by accident."),
    entry("14.05", Must, 1, &[A], "100 names x 50 clients: every per-name sub-history is legal."),
    entry("14.06", Must, 2, &[A], "More held locks than pool connections: Busy/LimitReached or progress; \
        never deadlock."),
    entry("14.07", Must, 2, &[A], "Dropping half of the guards leaves the other half held."),
    entry("15.01", Must, 1, &[P], "Acquire with a lost reply ends as guard or Unknown; on Unknown the name \
        is free by ttl."),
    entry("15.02", Must, 1, &[P], "An internal retry recognises its own earlier grant instead of waiting \
        for itself."),
    entry("15.03", Must, 1, &[P], "One call never makes two grants or two queue entries."),
    entry("15.04", Must, 1, &[P], "Retry after a connection error never makes two holders."),
    entry("15.05", Must, 1, &[P], "A transport error is never reported as success."),
    entry("15.06", Must, 2, &[S], "Duplicated requests are harmless."),
    entry("15.07", Must, 2, &[P], "A delayed old release/renew that arrives after a new grant is refused."),
    entry("15.08", Must, 1, &[P], "An unknown outcome is reported as `Unknown`, never as not acquired."),
    entry("15.09", Must, 2, &[P], "An acquire that is delivered after its abandon leaves nothing."),
    entry("16.01", Must, 1, &[P], "RST while holding: reconnect and keep it if within ttl, else loss."),
    entry("16.02", Must, 1, &[P], "Black-holed connection: operations end within the op timeout; loss by \
        the deadline."),
    entry("16.03", Must, 1, &[P], "Cut while waiting: the wait resumes or errors; never hangs."),
    entry("16.04", Must, 2, &[P, H], "Session expiry loses all its guards; a new session never adopts the \
        old one's entry (CURATOR-604)."),
    entry("16.05", Must, 1, &[C], "SIGKILL of the holder: free by ttl/session timeout + slack."),
    entry("16.06", Must, 1, &[C], "SIGSTOP > ttl then SIGCONT: the first sync check says invalid before any \
        I/O; loss fires; fenced writes are refused."),
    entry("16.07", Must, 2, &[C], "SIGSTOP < ttl - margin loses nothing."),
    entry("16.08", Must, 2, &[H], "Server restart while held: still held with the same token, or loss \
        before anyone else is granted - as claimed."),
    entry("16.09", Must, 1, &[P], "Server away: Unavailable within the bound; works again without a new \
        client."),
    entry("16.10", Must, 1, &[P], "Latency of 0.5 ttl: exclusion holds, validity shrinks accordingly."),
    entry("16.11", Must, 2, &[H], "A clock step of the server makes no immortal lock; an early expiry only \
        if the backend declares to be clock sensitive, and fencing still increases."),
    entry("16.12", Must, 3, &[H], "Failover/leader change: histories legal if SAFE_FAILOVER is claimed; \
        otherwise the loss rate is printed in the report."),
    entry("16.13", Must, 2, &[P], "One partitioned client loses its locks; the others proceed by ttl + \
        slack."),
    entry("16.14", Must, 3, &[H], "Foreign data at the lock's key answers `BackendData`; no panic, no \
        takeover."),
    entry("16.15", Must, 2, &[P, C], "Random nemesis (cut, delay, blackhole, kill, stop) 60 s x seeds: \
        history legal; after heal every name is acquirable by the bound."),
    entry("17.01", Must, 1, &[A], "The error kinds are distinct, and each is produced by its scenario: \
        `Timeout`, `Lost`, `InvalidInput`, `LimitReached`, `Unsupported`, `Unavailable`, `Unknown`, \
        `BackendData`, `Closed`."),
    entry("17.02", Must, 1, &[A], "Honesty probe: an UNdeclared capability answers Unsupported at once with \
        no side effect."),
    entry("17.03", Must, 1, &[A], "A declared capability is really exercised; Unsupported from a declared \
        one is Fail."),
    entry("17.04", Must, 1, &[A], "No panic reaches the caller or a background task in any rule."),
    entry("17.05", Must, 2, &[A], "No secrets in Display/Debug/tracing (password sentinel in the URL)."),
    entry("17.06", Must, 1, &[A], "Errors are Error + Send + Sync + 'static and keep `source()`."),
    entry("17.07", Must, 1, &[A], "Capabilities are constant for a client's life."),
    entry("17.08", Should, 3, &[A], "Grant, renew, loss and release emit one event each with name, grant \
        id, token."),
    entry("17.09", Must, 1, &[A], "`close()` is idempotent, ends renewals, and later calls answer Closed."),
    entry("18.01", Must, 2, &[P], "A quorum never has more holders than the mode allows, for any choice of \
        majorities."),
    entry("18.02", Must, 2, &[P], "Extending a quorum lock needs a majority of all members, not of those \
        that were acquired."),
    entry("18.03", Must, 2, &[P], "Tokens of a fenced quorum increase over changing majorities."),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_unique_and_in_order() {
        let key = |id: &str| {
            let (section, rule) = id.split_once('.').unwrap();
            (section.parse::<u32>().unwrap(), rule.parse::<u32>().unwrap())
        };
        for pair in ALL.windows(2) {
            assert!(
                key(pair[0].id) < key(pair[1].id),
                "{} and {}",
                pair[0].id,
                pair[1].id
            );
        }
        let mut last = (0, 0);
        for rule in rules::all() {
            assert!(key(rule.id) > last, "{} is out of order or twice there", rule.id);
            last = key(rule.id);
        }
    }

    #[test]
    fn every_tested_rule_is_in_the_catalogue_with_the_same_level() {
        for rule in rules::all() {
            let entry = ALL.iter().find(|e| e.id == rule.id);
            assert_eq!(entry.map(|e| e.level), Some(rule.level), "{}", rule.id);
        }
    }
}
