//! The board, step by step. Requests and their tokens are numbers, times are in milliseconds.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::spi::{LeaseKey, LostLeases, Signal};
use dlock_core::{LockName, LossReason, RequestId, Timestamp, Token};
use futures::channel::mpsc;
use futures::{FutureExt as _, StreamExt as _};

use super::board::{Asked, Board, Found, Step, Stopped};
use super::handle::Handle;
use super::keys::Key;

struct Table {
    board: Board,
    name: &'static str,
    signals: mpsc::UnboundedReceiver<Signal>,
}

/// A connection that was heard of at the beginning, for a second.
fn connection(id: u64) -> Arc<Handle> {
    Handle::new(id, Timestamp::ZERO, Duration::from_secs(1)).0
}

fn at(ms: u64) -> Timestamp {
    Timestamp::ZERO + Duration::from_millis(ms)
}

impl Table {
    fn new(most_waiting: usize) -> Self {
        let board = Board::new(most_waiting);
        let signals = board.signals();
        let name = "x";
        Self { board, name, signals }
    }

    fn lease(&self, n: u64) -> LeaseKey {
        LeaseKey::new(LockName::new(self.name).unwrap(), RequestId::new(1, n))
    }

    fn key(&self) -> Key {
        Key::new("space", &self.lease(0).name, 28)
    }

    fn ask(&self, n: u64, waits: bool, ms: u64) -> &'static str {
        match self.board.ask(&self.key(), &self.lease(n), waits, at(ms)) {
            Ok(Asked::Granted(holder)) if holder.token.get() == n => "granted",
            Ok(Asked::Granted(_)) => "somebody else's",
            Ok(Asked::Wait) => "wait",
            Ok(Asked::Expect) => "expect",
            Ok(Asked::Try) => "try",
            Err(e) if e.may_be_held() => "unknown",
            Err(_) => "lost",
        }
    }

    fn tried(&self, n: u64, got: Option<u64>) -> bool {
        let got = got.map(|id| (Token::new(n).unwrap(), connection(id)));
        self.board.tried(&self.key(), &self.lease(n), got)
    }

    fn look(&self, n: u64, expects: bool, ms: u64) -> Step {
        self.board.step(&self.key(), &self.lease(n), expects, at(ms))
    }

    fn step(&self, n: u64, expects: bool, ms: u64) -> &'static str {
        match self.look(n, expects, ms) {
            Step::Ready => "ready",
            Step::Stay(_) => "stay",
            Step::Starved(..) => "starved",
            Step::Contend(Some(_), _) => "contend",
            Step::Contend(None, _) => "contend on a new one",
            Step::Failed => "failed",
        }
    }

    fn contended(&self, n: u64, id: u64, ms: u64) -> bool {
        let token = Token::new(n).unwrap();
        self.board
            .contended(&self.key(), &self.lease(n), token, connection(id), at(ms))
    }

    fn withdraw(&self, n: u64, ms: u64) -> &'static str {
        match self.board.withdraw(&self.key(), self.lease(n).id, at(ms)) {
            Ok(Found::Nothing) => "nothing",
            Ok(Found::InLine) => "in line",
            Ok(Found::Trying(_)) => "trying",
            Ok(Found::Contending(_)) => "contending",
            Ok(Found::Holding(_)) => "holding",
            Err(_) => "unknown",
        }
    }

    fn is_held(&self, n: u64) -> bool {
        self.board.connection(&self.key(), self.lease(n).id).is_some()
    }

    /// Request `n` holds, on that connection.
    fn hold(&self, n: u64, id: u64) {
        assert_eq!((self.ask(n, false, 0), self.tried(n, Some(id))), ("try", true));
    }

    fn release(&self, n: u64) {
        assert_eq!(self.withdraw(n, 0), "holding");
        self.board.unlocked(&self.key(), self.lease(n).id, true, at(0));
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
    let table = Table::new(4);
    assert_eq!(table.ask(1, false, 0), "try");
    assert_eq!(
        (table.ask(2, false, 0), table.ask(1, false, 0)),
        ("wait", "unknown")
    );
    assert!(table.tried(1, Some(1)));
    assert_eq!(
        (table.ask(2, false, 0), table.ask(1, false, 0)),
        ("wait", "granted")
    );
}

#[test]
fn what_was_abandoned_while_tried_is_given_back_first() {
    let table = Table::new(4);
    assert_eq!((table.ask(1, false, 0), table.withdraw(1, 0)), ("try", "trying"));
    assert!(!table.tried(1, Some(1)));
    assert_eq!(table.ask(2, false, 0), "wait", "it is not given back yet");
    assert!(table.tried(1, None));
    assert_eq!((table.ask(1, false, 0), table.ask(2, false, 0)), ("lost", "try"));
}

#[test]
fn a_holder_whose_lock_the_server_gave_away_is_told() {
    for leaves in [false, true] {
        let mut table = Table::new(4);
        table.hold(1, 1);
        assert_eq!(table.step(2, false, 0), "contend on a new one");
        if leaves {
            assert_eq!(table.withdraw(1, 0), "holding");
        }
        assert!(table.contended(2, 2, 0));
        assert_eq!(table.lost().is_empty(), leaves);
        // What comes of the first one's release says nothing of the second.
        table
            .board
            .unlocked(&table.key(), table.lease(1).id, false, at(0));
        assert!(table.is_held(2));
    }
}

#[test]
fn a_connection_that_ends_takes_only_what_hung_on_it() {
    let mut table = Table::new(4);
    table.hold(1, 1);
    assert_eq!(table.step(2, false, 0), "contend on a new one");
    table.board.over(2, None);
    table
        .board
        .stopped(&table.key(), &table.lease(2), Stopped::Failed);
    assert!(table.lost().is_empty() && table.is_held(1));
    // It is told once that it could not, and is the first in line.
    assert_eq!(table.step(2, false, 0), "failed");
    assert_eq!(table.step(2, false, 0), "contend on a new one");
    table.board.over(1, None);
    assert_eq!(table.lost(), [table.lease(1)]);
}

#[test]
fn a_waiter_that_is_away_for_long_is_passed_over() {
    let table = Table::new(4);
    let is_wanted = |ms| table.board.is_wanted(&table.key(), &table.lease(2), at(ms));
    table.hold(1, 1);
    assert_eq!(table.step(2, false, 0), "contend on a new one");
    assert_eq!(table.step(3, false, 0), "stay");
    table.board.left(&table.key(), &table.lease(2), at(0));
    assert!(is_wanted(3000) && !is_wanted(3001) && !table.contended(2, 2, 3001));
    table
        .board
        .stopped(&table.key(), &table.lease(2), Stopped::Unwanted);
    assert_eq!(table.step(3, false, 3001), "contend on a new one");
}

#[test]
fn a_waiter_without_a_connection_is_rung_when_there_is_one() {
    let table = Table::new(0);
    let Step::Starved(rung, _) = table.look(1, false, 0) else {
        panic!("there is no connection");
    };
    // It may ask on the shared connection meanwhile.
    assert_eq!((table.ask(1, false, 0), table.tried(1, None)), ("try", true));
    assert!(rung.now_or_never().is_some(), "the end of a try rings");
    let Step::Starved(_, free) = table.look(1, false, 0) else {
        panic!("there is no connection");
    };
    table.board.put_back(connection(1));
    assert!(free.now_or_never().is_some());
    assert_eq!(table.step(1, false, 0), "contend");
}

#[test]
fn nothing_is_kept_of_a_name_that_nobody_is_at() {
    let table = Table::new(4);
    table.hold(1, 1);
    table.release(1);
    assert!(table.board.was_released(table.lease(1).id));
    assert!(table.board.is_empty());
}

#[test]
fn what_nobody_renews_lapses() {
    let table = Table::new(4);
    table.hold(1, 1);
    let (key, id) = (table.key(), table.lease(1).id);
    assert!(table.board.lapsed(1, at(1000)).is_empty());
    assert!(table.board.extend(&key, id, at(1500)));
    assert!(table.board.lapsed(1, at(1500)).is_empty() && table.board.lapsed(2, at(9000)).is_empty());
    assert_eq!(table.board.lapsed(1, at(1501)), [(key, id)]);
    assert!(!table.board.extend(&key, id, at(3000)), "it is being given back");
    assert!(table.board.lapsed(1, at(9000)).is_empty(), "it is told once");
}

#[test]
fn what_was_let_in_unheard_lapses_unless_it_is_asked_for() {
    for asks in [false, true] {
        let table = Table::new(4);
        assert_eq!(table.step(1, false, 0), "contend on a new one");
        table.board.left(&table.key(), &table.lease(1), at(0));
        let handle = Handle::new(1, at(0), Duration::from_secs(30)).0;
        let token = Token::new(1).unwrap();
        assert!(
            table
                .board
                .contended(&table.key(), &table.lease(1), token, handle, at(1000))
        );
        if asks {
            assert_eq!(table.ask(1, true, 4000), "granted");
        }
        assert!(table.board.lapsed(1, at(4000)).is_empty());
        assert_eq!(table.board.lapsed(1, at(4001)).is_empty(), asks);
    }
}

#[test]
fn what_may_be_granted_unheard_is_not_called_withdrawn() {
    let table = Table::new(4);
    assert_eq!(table.ask(1, false, 0), "try");
    table.board.doubt(table.lease(1).id, at(0), at(1000));
    assert!(table.tried(1, None));
    assert_eq!(
        (table.withdraw(1, 999), table.withdraw(1, 1000)),
        ("unknown", "nothing")
    );
    // Granted after all, nothing is doubtful.
    assert_eq!(table.ask(2, false, 0), "try");
    table.board.doubt(table.lease(2).id, at(0), at(1000));
    assert!(table.tried(2, Some(2)));
    assert_eq!(table.withdraw(2, 1), "holding");
}

#[test]
fn a_waiter_where_others_were_a_moment_ago_does_not_try() {
    let table = Table::new(4);
    let meet = |ms| table.board.met_others(&table.key(), at(ms));
    let ask = |n, waits, ms| {
        let asked = table.ask(n, waits, ms);
        table.tried(n, None);
        asked
    };
    meet(1000);
    assert_eq!(ask(2, true, 1001), "try", "there is no connection to wait on");
    table.board.put_back(connection(1));
    assert_eq!(ask(3, true, 1999), "expect");
    assert_eq!(ask(4, false, 1999), "try", "it does not wait");
    assert_eq!(ask(5, true, 2000), "try", "that is long ago");
    meet(2000);
    assert_eq!(table.step(6, true, 2001), "contend");
    table
        .board
        .stopped(&table.key(), &table.lease(6), Stopped::Failed);
    assert_eq!(table.step(6, true, 2001), "failed");
    table.board.put_back(connection(1));
    assert_eq!(ask(6, true, 2001), "try", "it could not wait");
    assert_eq!(table.withdraw(6, 0), "in line");
    // What it has is not asked for again.
    table.hold(7, 2);
    meet(2000);
    assert_eq!(ask(7, true, 2001), "granted");
}

#[test]
fn who_expects_others_and_finds_no_connection_tries() {
    let mut table = Table::new(4);
    table.board.put_back(connection(1));
    // Both are told so before either has looked.
    for name in ["x", "y"] {
        table.name = name;
        table.board.met_others(&table.key(), at(1));
        assert_eq!(table.ask(1, true, 2), "expect");
    }
    assert_eq!(table.step(1, true, 2), "contend");
    table.name = "x";
    assert_eq!((table.step(2, true, 2), table.ask(2, true, 2)), ("ready", "try"));
}

#[test]
fn the_last_connection_is_for_whoever_has_met_somebody() {
    let table = Table::new(1);
    table.hold(1, 1);
    assert_eq!(table.step(2, false, 0), "contend on a new one");
    table
        .board
        .stopped(&table.key(), &table.lease(2), Stopped::Unwanted);
    table.board.put_back(connection(2));
    table.board.met_others(&table.key(), at(1));
    table.release(1);
    assert_eq!(table.ask(3, true, 2), "try");
}

#[test]
fn a_late_answer_takes_back_nothing() {
    let t = |seconds: u64| at(seconds * 1000);
    let life = Handle::new(1, t(100), Duration::from_secs(10)).0.life.clone();
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
        (settings.ttl, settings.turn),
        (Duration::from_secs(4), Duration::from_secs(1))
    );
}
