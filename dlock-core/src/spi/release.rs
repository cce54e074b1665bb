use std::time::Duration;

use crate::token::Token;

/// How a lease is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Release {
    /// At once.
    Now,
    /// Ends the hold, but keeps the name taken for this long from now: the minimum hold. The store never
    /// makes it longer. Repeating the release answers `Released`. Renewing, converting, raising or abandoning
    /// the key finds nothing, and an attempt of it fails with `Lost`. Watchers see the release when the time
    /// is over. Needs [`Capability::MinimumHold`](crate::Capability::MinimumHold).
    KeepFor(Duration),
}

/// The answer to a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Released {
    /// The lease was ended by this call, or by an earlier delivery of it.
    Released,
    /// There was no such lease any more.
    NotHeld,
}

/// The answer to an abandon.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Abandoned {
    /// There was nothing to undo; a tombstone is left.
    Nothing,
    /// A queue entry was withdrawn.
    Withdrawn,
    /// The request had been granted, with this token, and is released now.
    WasGranted(Option<Token>),
}
