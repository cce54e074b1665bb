//! The tokens that grants are numbered with.

use dlock_core::{Error, ErrorKind, Result, Token};

use crate::gate::LAST_TOKEN;

/// The tokens of the database, as the transaction sees them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tokens {
    pub(crate) last: u64,
    #[cfg_attr(not(feature = "sqlite"), expect(dead_code))]
    pub(crate) ceiling: u64,
    pub(crate) dirty: bool,
}

impl Tokens {
    /// Refuses what needs a token when there is none: one that came twice would be no fence. A raise may have
    /// gone to the last one that SQL can store.
    pub(super) fn check(&self) -> Result<()> {
        if self.last < LAST_TOKEN {
            return Ok(());
        }
        let text = format!(
            "the tokens of this database are used up: the last one, {LAST_TOKEN}, was granted or raised to; \
             use another table prefix, with new gates"
        );
        Err(Error::new(ErrorKind::LimitReached, text))
    }

    pub(super) fn mint(&mut self) -> Result<Token> {
        self.check()?;
        let next = Token::new(self.last + 1).unwrap_or(Token::MIN);
        self.at_least(next);
        Ok(next)
    }

    pub(super) fn at_least(&mut self, token: Token) {
        if token.get() > self.last {
            self.last = token.get();
            self.dirty = true;
        }
    }
}
