//! The token of a grant.

use dlock_core::Token;

use crate::subject::Held;
use crate::verdict::Verdict;

/// The token of a grant.
pub(super) fn token_of(held: &dyn Held, how: impl std::fmt::Display) -> Verdict<Token> {
    match held.token() {
        Some(token) => Ok(token),
        None => crate::fail!("{how}: the grant has no token"),
    }
}
