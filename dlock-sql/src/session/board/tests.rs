use std::sync::Arc;

use dlock_core::spi::{LeaseKey, LostLeases};
use dlock_core::{Error, ErrorKind, LockName, LossReason, RequestId, Result, Timestamp, Token};
use futures::{FutureExt as _, StreamExt as _};

use super::*;
use crate::session::connection::{Handle, Kind};
use crate::session::keys::Key;

fn lease(n: u64) -> LeaseKey {
    LeaseKey::new(LockName::new("x").unwrap(), RequestId::new(1, n))
}

fn key() -> Key {
    Key::new("space", &lease(0).name)
}

fn at(ms: u64) -> Timestamp {
    Timestamp::ZERO + Duration::from_millis(ms)
}

fn token(n: u64) -> Token {
    Token::new(n).unwrap()
}

fn is_wait(asked: Result<Asked>) -> bool {
    matches!(asked, Ok(Asked::Wait))
}

/// The request tries and has it.
fn hold(board: &Board, n: u64, connection: &Arc<Handle>) {
    assert!(matches!(
        board.ask(&key(), &lease(n), false, at(0)),
        Ok(Asked::Try)
    ));
    let kept = board.tried(&key(), &lease(n), Some((token(n), connection.clone())));
    assert_eq!(kept, Verdict::Keep);
}

/// The request is the contender, on that connection.
fn contend(board: &Board, n: u64, connection: &Arc<Handle>) {
    let Step::Contend(None, _) = board.step(&key(), &lease(n), false, at(0)) else {
        panic!("it is not its turn to contend");
    };
    board.contends_on(&key(), &lease(n), connection.id);
}

fn lost(signals: &mut mpsc::UnboundedReceiver<Signal>) -> Vec<LeaseKey> {
    match signals.next().now_or_never() {
        Some(Some(Signal::Lost(LostLeases::These(keys), LossReason::SessionLost))) => keys,
        _ => Vec::new(),
    }
}

#[test]
fn two_requests_of_one_client_never_try_together() {
    let (board, connection) = (Board::new(4), Handle::apart(1));
    assert!(matches!(
        board.ask(&key(), &lease(1), false, at(0)),
        Ok(Asked::Try)
    ));
    assert!(is_wait(board.ask(&key(), &lease(2), false, at(0))));
    let again = board.ask(&key(), &lease(1), false, at(0)).err().unwrap();
    assert!(again.may_be_held(), "{again}");
    board.tried(&key(), &lease(1), Some((token(1), connection)));
    assert!(
        is_wait(board.ask(&key(), &lease(2), false, at(0))),
        "a session is let in again"
    );
    assert!(matches!(
        board.ask(&key(), &lease(1), false, at(0)),
        Ok(Asked::Granted(holder)) if holder.token == token(1)
    ));
}

#[test]
fn what_was_abandoned_while_it_was_tried_is_given_back_before_anybody_else_tries() {
    let (board, connection) = (Board::new(4), Handle::apart(1));
    assert!(matches!(
        board.ask(&key(), &lease(1), false, at(0)),
        Ok(Asked::Try)
    ));
    assert!(matches!(
        board.abandon(&key(), lease(1).id, at(0)),
        Ok(Found::Trying)
    ));
    let verdict = board.tried(&key(), &lease(1), Some((token(1), connection)));
    assert_eq!(verdict, Verdict::GiveBack);
    assert!(
        is_wait(board.ask(&key(), &lease(2), false, at(0))),
        "it is not given back yet"
    );
    board.tried(&key(), &lease(1), None);
    assert!(matches!(
        board.ask(&key(), &lease(2), false, at(0)),
        Ok(Asked::Try)
    ));
    let late = board.ask(&key(), &lease(1), false, at(0)).err().unwrap();
    assert_eq!(late.kind(), ErrorKind::Lost);
}

#[test]
fn a_holder_whose_lock_the_server_gave_away_is_told_so() {
    let (board, first, second) = (Board::new(4), Handle::apart(1), Handle::apart(2));
    let mut signals = board.signals();
    hold(&board, 1, &first);
    contend(&board, 2, &second);
    let (verdict, heard) = board.contended(&key(), &lease(2), token(2), second, at(0));
    assert_eq!((verdict, heard), (Verdict::Keep, IsHeard::Yes));
    assert_eq!(lost(&mut signals), [lease(1)]);
    // What comes of the first one's release says nothing of the second.
    board.unlocked(&key(), lease(1).id, false, at(0));
    assert!(board.holder(&key(), lease(2).id).is_some());
}

#[test]
fn a_holder_on_its_way_out_is_not_told_that_it_has_lost() {
    let (board, first, second) = (Board::new(4), Handle::apart(1), Handle::apart(2));
    let mut signals = board.signals();
    hold(&board, 1, &first);
    contend(&board, 2, &second);
    assert!(board.leave(&key(), lease(1).id, at(0)).unwrap().is_some());
    board.contended(&key(), &lease(2), token(2), second, at(0));
    assert!(lost(&mut signals).is_empty());
}

#[test]
fn a_connection_that_ends_takes_with_it_what_hung_on_it_and_nothing_else() {
    let (board, first, second) = (Board::new(4), Handle::apart(1), Handle::apart(2));
    let mut signals = board.signals();
    hold(&board, 1, &first);
    contend(&board, 2, &second);
    board.over(2, Kind::Waiting, None);
    assert!(lost(&mut signals).is_empty() && board.holder(&key(), lease(1).id).is_some());
    // It is told once that it could not, and is the first in line.
    assert!(matches!(
        board.step(&key(), &lease(2), false, at(0)),
        Step::Failed
    ));
    assert!(matches!(
        board.step(&key(), &lease(2), false, at(0)),
        Step::Contend(None, _)
    ));
    board.over(1, Kind::Shared, None);
    assert_eq!(lost(&mut signals), [lease(1)]);
}

#[test]
fn who_is_away_for_long_is_passed_over() {
    let (board, connection) = (Board::new(4), Handle::apart(1));
    hold(&board, 1, &connection);
    contend(&board, 2, &Handle::apart(2));
    assert!(matches!(
        board.step(&key(), &lease(3), false, at(0)),
        Step::Stay(_)
    ));
    board.left(&key(), &lease(2), at(0));
    assert!(board.is_wanted(&key(), &lease(2), at(3000)));
    assert!(!board.is_wanted(&key(), &lease(2), at(3001)));
    let (verdict, _) = board.contended(&key(), &lease(2), token(2), connection, at(3001));
    assert_eq!(verdict, Verdict::GiveBack);
    board.withdrawn(&key(), &lease(2), None);
    assert!(matches!(
        board.step(&key(), &lease(3), false, at(3001)),
        Step::Contend(..)
    ));
}

#[test]
fn whoever_finds_no_connection_to_wait_on_is_rung_when_there_is_one() {
    let (board, connection) = (Board::new(0), Handle::apart(1));
    let Step::Starved(rung) = board.step(&key(), &lease(1), false, at(0)) else {
        panic!("there is no connection");
    };
    // It may ask on the shared connection meanwhile.
    assert!(matches!(
        board.ask(&key(), &lease(1), false, at(0)),
        Ok(Asked::Try)
    ));
    board.tried(&key(), &lease(1), None);
    let mut rung = Box::pin(rung);
    assert!(rung.as_mut().now_or_never().is_some(), "the end of a try rings");
    let Step::Starved(rung) = board.step(&key(), &lease(1), false, at(0)) else {
        panic!("there is no connection");
    };
    board.put_back(connection);
    assert!(rung.now_or_never().is_some());
    assert!(matches!(
        board.step(&key(), &lease(1), false, at(0)),
        Step::Contend(Some(_), _)
    ));
}

#[test]
fn nothing_is_kept_of_a_name_that_nobody_is_at() {
    let (board, connection) = (Board::new(4), Handle::apart(1));
    hold(&board, 1, &connection);
    board.leave(&key(), lease(1).id, at(0)).unwrap();
    board.unlocked(&key(), lease(1).id, true, at(0));
    assert!(board.was_released(lease(1).id));
    assert!(board.state().names.is_empty());
}

#[test]
fn what_nobody_renews_lapses() {
    let (board, connection) = (Board::new(4), Handle::apart(1));
    hold(&board, 1, &connection);
    // The ttl of that connection is a second.
    assert!(board.lapsed(1, at(1000)).is_empty());
    assert!(board.extend(&key(), lease(1).id, at(1500)));
    assert!(board.lapsed(1, at(1500)).is_empty() && board.lapsed(2, at(9000)).is_empty());
    assert_eq!(board.lapsed(1, at(1501)), [(key(), lease(1).id)]);
    assert!(
        !board.extend(&key(), lease(1).id, at(3000)),
        "it is being given back"
    );
    assert!(board.lapsed(1, at(9000)).is_empty(), "it is told once");
}

#[test]
fn what_may_be_granted_unheard_is_not_called_withdrawn() {
    let (board, connection) = (Board::new(4), Handle::apart(1));
    let id = lease(1).id;
    assert!(matches!(
        board.ask(&key(), &lease(1), false, at(0)),
        Ok(Asked::Try)
    ));
    board.doubt(id, at(0), at(1000));
    board.tried(&key(), &lease(1), None);
    board.over(1, Kind::Shared, None);
    let unknown = board.abandon(&key(), id, at(999)).err().unwrap();
    assert!(unknown.may_be_held(), "{unknown}");
    assert!(matches!(board.abandon(&key(), id, at(1000)), Ok(Found::Nothing)));
    // Granted after all, nothing is doubtful.
    assert!(matches!(
        board.ask(&key(), &lease(2), false, at(0)),
        Ok(Asked::Try)
    ));
    board.doubt(lease(2).id, at(0), at(1000));
    board.tried(&key(), &lease(2), Some((token(2), connection)));
    assert!(matches!(
        board.abandon(&key(), lease(2).id, at(1)),
        Ok(Found::Holding(_))
    ));
}

#[test]
fn who_waits_where_others_were_a_moment_ago_does_not_try() {
    let (board, ms) = (Board::new(4), |n: u64| at(1_000 + n));
    let asked = |n, waits, now| {
        let asked = board.ask(&key(), &lease(n), waits, now).unwrap();
        let tries = matches!(asked, Asked::Try);
        assert!(tries || matches!(asked, Asked::Expect));
        if tries {
            board.tried(&key(), &lease(n), None);
        }
        tries
    };
    assert!(asked(1, true, ms(0)));
    board.met_others(&key(), ms(0));
    assert!(asked(2, true, ms(1)), "there is no connection to wait on");
    board.put_back(Handle::apart(1));
    assert!(!asked(3, true, ms(999)));
    assert!(asked(4, false, ms(999)), "it does not wait");
    assert!(asked(5, true, ms(1_000)), "that is long ago");
    // What it has is not asked for again.
    hold(&board, 6, &Handle::apart(2));
    board.met_others(&key(), ms(2_000));
    let again = board.ask(&key(), &lease(6), true, ms(2_001));
    assert!(matches!(again, Ok(Asked::Granted(_))));
}

#[test]
fn who_expects_others_and_finds_no_connection_tries_after_all() {
    let board = Board::new(4);
    let other = Key::new("", &LockName::new("other").unwrap());
    for name in [key(), other] {
        board.met_others(&name, at(1));
    }
    board.put_back(Handle::apart(1));
    // Both are told so before either has looked.
    assert!(matches!(
        board.ask(&key(), &lease(1), true, at(2)),
        Ok(Asked::Expect)
    ));
    assert!(matches!(
        board.ask(&other, &lease(2), true, at(2)),
        Ok(Asked::Expect)
    ));
    let first = board.step(&key(), &lease(1), true, at(2));
    assert!(matches!(first, Step::Contend(Some(_), _)));
    assert!(matches!(board.step(&other, &lease(2), true, at(2)), Step::Ready));
    assert!(matches!(
        board.ask(&other, &lease(2), true, at(2)),
        Ok(Asked::Try)
    ));
}

#[test]
fn the_last_connection_to_wait_on_is_for_whoever_has_met_somebody() {
    let board = Board::new(1);
    hold(&board, 1, &Handle::apart(1));
    contend(&board, 2, &Handle::apart(2));
    board.withdrawn(&key(), &lease(2), None);
    board.put_back(Handle::apart(2));
    board.met_others(&key(), at(1));
    board.leave(&key(), lease(1).id, at(0)).unwrap();
    board.unlocked(&key(), lease(1).id, true, at(0));
    assert!(matches!(
        board.ask(&key(), &lease(3), true, at(2)),
        Ok(Asked::Try)
    ));
}

#[test]
fn who_was_kept_waiting_counts_on_others_and_who_could_not_wait_tries() {
    let board = Board::new(4);
    let contends = |n, from, until| {
        board.put_back(Handle::apart(n));
        let Step::Contend(Some(connection), _) = board.step(&key(), &lease(n), false, from) else {
            panic!("it is not its turn to contend");
        };
        let (kept, _) = board.contended(&key(), &lease(n), token(n), connection, until);
        assert_eq!(kept, Verdict::Keep);
        board.leave(&key(), lease(n).id, at(0)).unwrap();
        board.unlocked(&key(), lease(n).id, true, at(0));
        board.put_back(Handle::apart(n));
    };
    let expects = |n, now| {
        let asked = board.ask(&key(), &lease(n), true, now).unwrap();
        matches!(asked, Asked::Expect)
    };
    contends(1, at(10), at(14));
    assert!(!expects(2, at(15)));
    board.tried(&key(), &lease(2), None);
    contends(3, at(20), at(25));
    assert!(expects(4, at(1_024)));
    let Step::Contend(Some(_), _) = board.step(&key(), &lease(4), true, at(1_024)) else {
        panic!("there is a connection");
    };
    let away = Error::new(ErrorKind::Unavailable, "it is away");
    board.withdrawn(&key(), &lease(4), Some(away));
    assert!(matches!(
        board.step(&key(), &lease(4), true, at(1_024)),
        Step::Failed
    ));
    assert!(!expects(4, at(1_024)));
}
