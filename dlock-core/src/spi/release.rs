use std::time::Duration;

use crate::token::Token;

/// How a lease is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Release {
    /// At once.
    Now,
    /// Not before that long from now: the minimum hold ("locked at least for"). The holder is gone, the name
    /// stays taken; the store never makes it longer than this. Released once more it is `Released`; to renew,
    /// convert, raise or abandon it finds nothing, and so does an attempt of that key (`Lost`). Watchers hear
    /// of a release at its end. Needs [`Capability::MinimumHold`](crate::Capability::MinimumHold).
    KeepFor(Duration),
}

/// The answer to a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Released {
    /// The lease has ended by this call (or by an earlier delivery of it).
    Released,
    /// There was no such lease any more.
    NotHeld,
}

/// The answer to an abandon.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Abandoned {
    /// There was nothing; a tombstone is left.
    Nothing,
    /// A queue entry was withdrawn.
    Withdrawn,
    /// It had been granted, with that token, and is released now.
    WasGranted(Option<Token>),
}
