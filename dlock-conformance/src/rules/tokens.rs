//! The token of a grant.

use dlock_core::Token;

use super::prelude::*;

/// The token of a grant.
pub(super) fn token_of(held: &dyn Held, how: impl std::fmt::Display) -> Verdict<Token> {
    match held.token() {
        Some(token) => Ok(token),
        None => crate::fail!("{how}: the grant has no token"),
    }
}
