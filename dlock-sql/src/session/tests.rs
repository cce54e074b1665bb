//! The board, step by step. Requests and their tokens are numbers, times are in milliseconds.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::spi::{LeaseKey, LostLeases, Signal};
use dlock_core::{Error, ErrorKind, LockName, LossReason, RequestId, Timestamp, Token};
use futures::channel::mpsc;
use futures::{FutureExt as _, StreamExt as _};

use super::board::{Asked, Bid, Board, Found, Step, Stop};
use super::handle::{Handle, Life};
use super::keys::Key;

struct Table {
    board: Arc<Board>,
    signals: mpsc::UnboundedReceiver<Signal>,
    bids: HashMap<u64, (Bid, Option<Stop>)>,
    connections: HashMap<u64, Arc<Handle>>,
}

/// A connection that was heard of at the beginning, for a second.
fn connection() -> Arc<Handle> {
    Handle::new(Life::new(false, Duration::from_secs(1))).0
}

fn at(ms: u64) -> Timestamp {
    Timestamp::ZERO + Duration::from_millis(ms)
}

fn lease(n: u64) -> LeaseKey {
    LeaseKey::new(LockName::new("x").unwrap(), RequestId::new(1, n))
}

fn key() -> Key {
    Key::new("space", &lease(0).name, 28)
}

impl Table {
    fn new(most_waiting: usize) -> Self {
        let board = Arc::new(Board::new(most_waiting));
        Self {
            signals: board.signals(),
            board,
            bids: HashMap::new(),
            connections: HashMap::new(),
        }
    }

    fn connection(&mut self, id: u64) -> Arc<Handle> {
        self.connections.entry(id).or_insert_with(connection).clone()
    }

    fn over_with(&mut self, id: u64) {
        let life = self.connection(id).life.clone();
        self.board.over(&life, None);
    }

    fn lapsed(&mut self, id: u64, ms: u64) -> Vec<(Key, RequestId)> {
        let life = self.connection(id).life.clone();
        let lapsed = self.board.lapsed(&life, at(ms)).into_iter();
        lapsed.map(|(key, id, _)| (key, id)).collect()
    }

    fn ask(&mut self, n: u64, waits: bool, ms: u64) -> &'static str {
        match self.board.ask(&key(), &lease(n), waits, at(ms)) {
            Ok(Asked::Granted(holder)) if holder.token.get() == n => "granted",
            Ok(Asked::Granted(_)) => "somebody else's",
            Ok(Asked::Wait) => "wait",
            Ok(Asked::Try(bid)) => {
                self.bids.insert(n, (bid, None));
                "try"
            }
            Err(e) if e.may_be_held() => "unknown",
            Err(_) => "lost",
        }
    }

    fn step(&mut self, n: u64, ms: u64) -> &'static str {
        match self.board.step(&key(), &lease(n), at(ms)) {
            Step::Ready => "ready",
            Step::Stay(_) => "stay",
            Step::Starved(_) => "starved",
            Step::Contend(idle, bid, stop) => {
                self.bids.insert(n, (bid, Some(stop)));
                idle.map_or("contend on a new one", |_| "contend")
            }
            Step::Failed => "failed",
        }
    }

    /// It is let in, on that connection.
    fn won(&mut self, n: u64, id: u64, ms: u64) -> bool {
        let connection = self.connection(id);
        let (bid, _) = self.bids.get_mut(&n).unwrap();
        let won = bid.won(Token::new(n).unwrap(), connection, at(ms));
        if won.is_some() {
            self.over(n);
        }
        won == Some(lease(n).id)
    }

    /// Nothing came of its bid.
    fn over(&mut self, n: u64) {
        self.bids.remove(&n).unwrap();
    }

    fn withdraw(&self, n: u64, ms: u64) -> &'static str {
        match self.board.withdraw(&key(), lease(n).id, at(ms)) {
            Ok(Found::Nothing) => "nothing",
            Ok(Found::Bidding(_)) => "bidding",
            Ok(Found::Holding(_)) => "holding",
            Err(_) => "unknown",
        }
    }

    fn is_held(&self, n: u64) -> bool {
        self.board.extend(&key(), lease(n).id).is_some()
    }

    /// Request `n` holds, on that connection.
    fn hold(&mut self, n: u64, id: u64) {
        assert_eq!((self.ask(n, false, 0), self.won(n, id, 0)), ("try", true));
    }

    fn unlocked(&self, n: u64, was_held: bool) {
        self.board.unlocked(&key(), lease(n).id, was_held, at(0));
    }

    fn lost(&mut self) -> Vec<LeaseKey> {
        match self.signals.next().now_or_never() {
            Some(Some(Signal::Lost(LostLeases::These(keys), LossReason::SessionLost))) => keys,
            _ => Vec::new(),
        }
    }
}

#[test]
fn two_requests_of_one_client_never_try_together() {
    let mut table = Table::new(4);
    assert_eq!(table.ask(1, false, 0), "try");
    assert_eq!(
        (table.ask(2, false, 0), table.ask(1, false, 0)),
        ("wait", "unknown")
    );
    assert!(table.won(1, 1, 0));
    assert_eq!(
        (table.ask(2, false, 0), table.ask(1, false, 0)),
        ("wait", "granted")
    );
}

#[test]
fn what_was_abandoned_while_tried_is_given_back_first() {
    let mut table = Table::new(4);
    assert_eq!((table.ask(1, false, 0), table.withdraw(1, 0)), ("try", "bidding"));
    assert!(!table.won(1, 1, 0));
    assert_eq!(table.ask(2, false, 0), "wait", "it is not given back yet");
    table.over(1);
    assert_eq!((table.ask(1, false, 0), table.ask(2, false, 0)), ("lost", "try"));
}

#[test]
fn a_waiter_at_the_server_is_told_to_stop_and_does_not_return() {
    let mut table = Table::new(4);
    assert_eq!(table.step(1, 0), "contend on a new one");
    assert_eq!(table.withdraw(1, 0), "bidding");
    let (bid, stop) = table.bids.get_mut(&1).unwrap();
    assert!(!bid.is_wanted(at(0)) && stop.as_mut().unwrap().now_or_never().is_some());
    table.over(1);
    assert!(table.board.is_empty());
}

#[test]
fn a_holder_whose_lock_the_server_gave_away_is_told() {
    for leaves in [false, true] {
        let mut table = Table::new(4);
        table.hold(1, 1);
        assert_eq!(table.step(2, 0), "contend on a new one");
        if leaves {
            assert_eq!(table.withdraw(1, 0), "holding");
        }
        assert!(table.won(2, 2, 0));
        assert_eq!(table.lost().is_empty(), leaves);
        // What comes of the first one's release says nothing of the second.
        table.unlocked(1, false);
        assert!(table.is_held(2));
    }
}

#[test]
fn a_connection_that_ends_takes_only_what_hung_on_it() {
    let mut table = Table::new(4);
    table.hold(1, 1);
    assert_eq!(table.step(2, 0), "contend on a new one");
    table.over_with(2);
    table.over(2);
    assert!(table.lost().is_empty() && table.is_held(1));
    // It is told once that it could not, and is the first in line.
    assert_eq!(table.step(2, 0), "failed");
    assert_eq!(table.step(2, 0), "contend on a new one");
    table.over_with(1);
    assert_eq!(table.lost(), [lease(1)]);
}

#[test]
fn a_waiter_that_is_away_for_long_is_passed_over() {
    for others in [false, true] {
        let mut table = Table::new(4);
        table.hold(1, 1);
        assert_eq!(table.step(2, 0), "contend on a new one");
        if others {
            assert_eq!(table.step(3, 0), "stay");
        }
        table.board.left(&key(), &lease(2), at(0));
        let is_wanted = |table: &mut Table, ms| table.bids.get_mut(&2).unwrap().0.is_wanted(at(ms));
        assert!(is_wanted(&mut table, 3000));
        assert_eq!(is_wanted(&mut table, 3001), others);
        assert!(!table.won(2, 2, 3001));
        assert_eq!(table.is_held(3), others, "it is let in for the next one");
    }
}

#[test]
fn a_wait_goes_on_for_the_next_one_in_line() {
    let mut table = Table::new(4);
    assert_eq!(table.step(1, 0), "contend on a new one");
    assert_eq!(table.step(2, 0), "stay");
    assert_eq!(table.withdraw(1, 0), "nothing");
    assert!(table.bids.get_mut(&1).unwrap().0.is_wanted(at(0)));
    assert_eq!(table.withdraw(2, 0), "bidding", "it was the last");
    assert_eq!(table.step(3, 0), "stay");
    assert!(!table.bids.get_mut(&1).unwrap().0.is_wanted(at(0)));
    table.over(1);
    assert_eq!(table.withdraw(2, 0), "nothing");
    assert_eq!(table.step(3, 0), "contend on a new one");
}

#[test]
fn a_try_counts_without_a_listener() {
    let mut table = Table::new(0);
    assert_eq!(table.step(1, 0), "starved");
    table.board.left(&key(), &lease(1), at(0));
    assert_eq!(table.ask(1, true, 1000), "try");
    assert!(table.won(1, 1, 3001), "the caller waits for the answer");
}

#[test]
fn a_waiter_without_a_connection_is_rung_when_it_pays_to_ask() {
    let mut table = Table::new(0);
    let Step::Starved(rung) = table.board.step(&key(), &lease(1), at(0)) else {
        panic!("there is no connection");
    };
    // It may ask on the shared connection meanwhile.
    assert_eq!(table.ask(1, false, 0), "try");
    table.over(1);
    assert!(rung.now_or_never().is_some(), "the end of a try rings");
    assert_eq!(table.step(2, 0), "stay", "it has kept its place");
    table.board.put_back(connection(), at(0));
    assert_eq!(table.step(1, 0), "contend");
}

#[test]
fn an_unused_name_keeps_nothing() {
    let mut table = Table::new(4);
    table.hold(1, 1);
    assert_eq!(table.withdraw(1, 0), "holding");
    table.unlocked(1, true);
    assert!(table.board.was_released(lease(1).id));
    assert!(table.board.is_empty());
}

#[test]
fn unrenewed_entries_expire() {
    let mut table = Table::new(4);
    table.hold(1, 1);
    let id = lease(1).id;
    assert!(table.lapsed(1, 1000).is_empty());
    let (connection, _) = table.board.extend(&key(), id).unwrap();
    connection.life.confirm(at(500));
    assert_eq!(table.board.extend(&key(), id).unwrap().1, at(500));
    assert!(table.lapsed(1, 1500).is_empty() && table.lapsed(2, 9000).is_empty());
    assert_eq!(table.lapsed(1, 1501), [(key(), id)]);
    assert!(!table.is_held(1), "it is being given back");
    assert!(table.lapsed(1, 9000).is_empty(), "it is told once");
}

#[test]
fn the_next_request_learns_why_connecting_failed() {
    let handle = connection();
    let why = Error::new(ErrorKind::Unsupported, "a pooler");
    handle.life.over.set(why.clone()).unwrap();
    let heard = handle.made().now_or_never().unwrap().unwrap_err();
    assert_eq!(heard.to_string(), why.to_string());
}

#[test]
fn what_was_let_in_unheard_lapses_unless_it_is_asked_for() {
    for asks in [false, true] {
        let mut table = Table::new(4);
        assert_eq!(table.step(1, 0), "contend on a new one");
        table.board.left(&key(), &lease(1), at(0));
        let handle = Handle::new(Life::new(false, Duration::from_secs(30))).0;
        table.connections.insert(1, handle.clone());
        let (mut bid, _) = table.bids.remove(&1).unwrap();
        assert!(bid.won(Token::new(1).unwrap(), handle, at(1000)).is_some());
        if asks {
            assert_eq!(table.ask(1, true, 4000), "granted");
        }
        assert!(table.lapsed(1, 4000).is_empty());
        assert_eq!(table.lapsed(1, 4001).is_empty(), asks);
    }
}

#[test]
fn what_may_be_granted_unheard_is_not_called_withdrawn() {
    let mut table = Table::new(4);
    for n in [1, 2] {
        assert_eq!(table.ask(n, false, 0), "try");
        table.bids.get_mut(&n).unwrap().0.doubt = Some(at(1000));
        match n {
            1 => table.over(1),
            _ => assert!(table.won(2, 2, 0)),
        }
    }
    assert_eq!(
        (table.withdraw(1, 999), table.withdraw(1, 1000)),
        ("unknown", "nothing")
    );
    assert_eq!(table.withdraw(2, 1), "holding", "granted, it is not doubtful");
}

#[test]
fn a_waiter_where_others_were_a_moment_ago_does_not_try() {
    let mut table = Table::new(4);
    let ask = |table: &mut Table, n, waits, ms| {
        let asked = table.ask(n, waits, ms);
        table.bids.clear();
        asked
    };
    table.board.met_others(&key(), at(1000));
    assert_eq!(ask(&mut table, 2, true, 1001), "try", "no connection to wait on");
    table.board.put_back(connection(), at(0));
    assert_eq!(ask(&mut table, 3, false, 1999), "try", "it does not wait");
    assert_eq!(ask(&mut table, 4, true, 2000), "try", "that is long ago");
    assert_eq!(ask(&mut table, 5, true, 1999), "wait");
    assert!(
        table.board.is_empty(),
        "who does not come to listen leaves nothing"
    );
    assert_eq!(table.step(5, 1999), "contend");
    table.over(5);
    table.board.put_back(connection(), at(0));
    assert_eq!(ask(&mut table, 5, true, 1999), "try", "it could not wait");
    assert_eq!(table.withdraw(5, 0), "nothing");
    // What it has is not asked for again.
    table.hold(7, 2);
    table.board.put_back(connection(), at(0));
    table.board.met_others(&key(), at(2000));
    assert_eq!(table.ask(7, true, 2001), "granted");
}

#[test]
fn the_last_connection_is_kept_for_contended_requests() {
    let mut table = Table::new(1);
    assert_eq!(table.step(2, 0), "contend on a new one");
    table.over(2);
    assert_eq!(table.withdraw(2, 0), "nothing");
    table.board.put_back(connection(), at(0));
    table.board.met_others(&key(), at(1));
    assert_eq!(table.ask(3, true, 2), "try");
}

#[test]
fn a_late_answer_takes_back_nothing() {
    let t = |seconds: u64| at(seconds * 1000);
    let life = Life::new(false, Duration::from_secs(10));
    life.confirm(t(100));
    life.confirm(t(103));
    life.confirm(t(101));
    assert_eq!((life.confirmed(), life.lapses()), (t(103), t(113)));
    assert!(life.is_ample(t(108)) && !life.is_ample(t(109)));
}

#[test]
fn a_key_is_of_name_and_space_as_far_as_the_server_sees() {
    let key = |space: &str, name: &str, bytes| Key::new(space, &LockName::new(name).unwrap(), bytes);
    assert_ne!(key("a", "bc", 28), key("ab", "c", 28));
    assert_eq!(key("a", "b", 8), key("a", "b", 8));
    assert_ne!(key("a", "b", 8), key("a", "b", 28));
    #[cfg(feature = "postgres")]
    assert_eq!(key("a", "b", 8).as_i64(), key("a", "b", 28).as_i64());
    #[cfg(feature = "mysql")]
    assert_eq!(
        key("a", "B", 28).as_text(),
        key("a", "B", 32).as_text().to_lowercase()
    );
}

#[cfg(feature = "mysql")]
#[test]
fn a_ttl_is_rounded_up_to_what_the_server_counts_in() {
    let config = super::Config::from_url("mysql://there/shop").unwrap();
    let settings = config.session_ttl(Duration::from_millis(3100)).checked().unwrap();
    assert_eq!(
        (settings.ttl, settings.turn()),
        (Duration::from_secs(4), Duration::from_secs(1))
    );
}
