//! The vocabulary: names, times, errors, the rule of the fence, and what backends share.

use std::error::Error as _;
use std::time::Duration;

use dlock_core::spi::{LeaseKey, Sent, Tombstones, Unanswered};
use dlock_core::{
    Access, Admission, Error, ErrorKind, FencedValue, LockName, LossReason, RequestId, Timestamp, Token,
};

#[test]
fn names_are_shown_without_breaking_a_terminal() {
    let name = LockName::new(b"a\n\xff\xc3\xa9".as_slice()).unwrap();
    assert_eq!(name.to_string(), "a\\n\\xffé");
}

#[test]
fn an_empty_name_is_refused() {
    assert_eq!(LockName::new("").unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn huge_durations_saturate_instead_of_wrapping() {
    assert_eq!(Timestamp::from_nanos(5) + Duration::MAX, Timestamp::MAX);
    assert_eq!(
        Timestamp::from_nanos(5).saturating_sub(Duration::MAX),
        Timestamp::ZERO
    );
}

#[test]
fn the_clock_moves_forward() {
    let a = Timestamp::now();
    let b = Timestamp::now();
    assert!(b >= a && a > Timestamp::ZERO);
}

#[test]
fn error_shows_message_and_lock_and_keeps_its_cause() {
    let cause = std::io::Error::other("connection reset");
    let e = Error::new(ErrorKind::Unavailable, "the server is away")
        .with_name(&LockName::new("a").unwrap())
        .with_source(cause);
    assert_eq!(e.to_string(), "the server is away (lock `a`)");
    assert_eq!(e.clone().source().unwrap().to_string(), "connection reset");
    assert!(e.is_retryable() && !e.may_be_held());
}

#[test]
fn a_loss_carries_its_reason() {
    let e = Error::lost(LossReason::Expired);
    assert_eq!(
        (e.kind(), e.loss_reason()),
        (ErrorKind::Lost, Some(LossReason::Expired))
    );
}

fn t(n: u64) -> Token {
    Token::new(n).unwrap()
}

#[test]
fn writers_are_fenced_by_all_readers_only_by_writers() {
    let mut v = FencedValue::new(vec![], None, None);
    assert!(v.admit(t(3), Access::Exclusive).is_admitted());
    assert!(
        v.admit(t(3), Access::Exclusive).is_admitted(),
        "the same token comes again"
    );
    assert!(v.admit(t(7), Access::Shared).is_admitted());
    assert!(
        v.admit(t(5), Access::Shared).is_admitted(),
        "readers are not fenced against one another"
    );
    assert_eq!(
        v.admit(t(6), Access::Exclusive),
        Admission::Refused { highest: t(7) }
    );
    assert!(v.admit(t(8), Access::Exclusive).is_admitted());
    assert_eq!(
        v.admit(t(7), Access::Shared),
        Admission::Refused { highest: t(8) }
    );
}

fn at(seconds: u64) -> Timestamp {
    Timestamp::ZERO + Duration::from_secs(seconds)
}

#[test]
fn the_latest_tombstones_are_kept_and_their_number_is_bounded() {
    let mut all = Tombstones::new(Duration::from_secs(60), 8);
    for n in 0..16 {
        all.bury(n, at(0));
        all.bury(n, at(0));
    }
    assert_eq!(
        (0..16).filter(|n| all.has(n)).collect::<Vec<_>>(),
        [8, 9, 10, 11, 12, 13, 14, 15]
    );
}

#[test]
fn one_that_is_buried_again_is_kept_from_then() {
    let mut all = Tombstones::new(Duration::from_secs(60), 8);
    all.bury(1, at(0));
    all.bury(1, at(30));
    all.bury(2, at(61));
    assert!(all.has(&1));
    all.bury(2, at(90));
    assert!(!all.has(&1) && all.has(&2));
}

fn key(n: u64) -> LeaseKey {
    LeaseKey::new(LockName::new("a").unwrap(), RequestId::new(1, n))
}

fn failed(kind: ErrorKind) -> Result<(), Error> {
    Err(Error::new(kind, "no answer"))
}

#[test]
fn an_acquire_and_a_release_are_told_apart() {
    let open = Unanswered::default();
    let (a, b) = (key(1), key(2));
    assert!(
        open.asks(&a, Sent::Acquire)
            .answered(failed(ErrorKind::Unknown))
            .is_err()
    );
    assert!(open.of(&a).acquire && !open.of(&a).release);
    assert!(
        open.asks(&b, Sent::Release)
            .answered(failed(ErrorKind::Unknown))
            .is_err()
    );
    assert!(!open.of(&b).acquire && open.of(&b).release);
    open.forget(&a);
    assert!(!open.of(&a).acquire);
}

#[test]
fn dropped_request_is_unanswered_and_refused_is_not() {
    let open = Unanswered::default();
    let a = key(1);
    assert!(
        open.asks(&a, Sent::Release)
            .answered(failed(ErrorKind::Unavailable))
            .is_err()
    );
    assert!(!open.of(&a).release);
    drop(open.asks(&a, Sent::Release));
    assert!(open.of(&a).release);
}

#[test]
fn an_error_that_main_returns_is_printed_in_words() {
    let refused = std::io::Error::other("connection refused");
    let away =
        Error::new(ErrorKind::Unavailable, "the server is away").with_name(&LockName::new("a").unwrap());
    let said = format!("{:?}", away.with_source(Outer(refused)));
    assert_eq!(
        said,
        "the server is away (lock `a`) [Unavailable]: cannot reach it: connection refused"
    );
    assert_eq!(format!("{:?}", Error::lost(LossReason::Expired)), {
        "the lock is not held any more: its deadline passed without a confirmed renewal [Lost]"
    });
}

/// Says in its own words what caused it, as many do.
#[derive(Debug)]
struct Outer(std::io::Error);

impl std::fmt::Display for Outer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cannot reach it: {}", self.0)
    }
}

impl std::error::Error for Outer {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}
