//! Reads the answers of the scripts.

use std::time::Duration;

use dlock_core::{Error, ErrorKind, Result, Token};
use redis::Value;

/// An answer, item by item.
pub(crate) struct Reply(std::vec::IntoIter<Value>);

pub(crate) fn strange(what: &str) -> Error {
    Error::new(
        ErrorKind::BackendData,
        format!("a script of dlock in Redis answered {what}"),
    )
}

impl Reply {
    pub(crate) fn new(value: Value) -> Result<Self> {
        match value {
            Value::Array(items) => Ok(Self(items.into_iter())),
            _ => Err(strange("no list")),
        }
    }

    pub(crate) fn next(&mut self) -> Result<Value> {
        self.0.next().ok_or_else(|| strange("too little"))
    }

    pub(crate) fn bytes(&mut self) -> Result<Vec<u8>> {
        match self.next()? {
            Value::BulkString(bytes) => Ok(bytes),
            Value::SimpleString(text) => Ok(text.into_bytes()),
            _ => Err(strange("no text")),
        }
    }

    pub(crate) fn text(&mut self) -> Result<String> {
        String::from_utf8(self.bytes()?).map_err(|_| strange("no text"))
    }

    pub(crate) fn number(&mut self) -> Result<i64> {
        match self.next()? {
            Value::Int(n) => Ok(n),
            _ => Err(strange("no number")),
        }
    }

    /// Milliseconds; what has run out already has none left.
    pub(crate) fn life(&mut self) -> Result<Duration> {
        Ok(Duration::from_millis(u64::try_from(self.number()?).unwrap_or(0)))
    }

    /// Milliseconds, if it is known when anything runs out.
    pub(crate) fn recheck(&mut self) -> Result<Option<Duration>> {
        Ok(u64::try_from(self.number()?).ok().map(Duration::from_millis))
    }

    pub(crate) fn token(&mut self) -> Result<Token> {
        token(&self.bytes()?)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.as_slice().is_empty()
    }

    /// What an answer ends with: see [`Backend::pushed`](crate::backend::Backend::pushed).
    pub(crate) fn pushed(&self) -> i64 {
        match self.0.as_slice().last() {
            Some(Value::Int(n)) => *n,
            _ => 0,
        }
    }

    pub(crate) fn rest(self) -> impl Iterator<Item = Value> {
        self.0
    }
}

/// What an item of a batch says of it, if it failed.
pub(crate) fn failure(answer: &Value) -> Option<String> {
    match answer {
        Value::Array(words) => match &words[..] {
            [Value::BulkString(e), Value::BulkString(why)] if e == b"E" => {
                Some(String::from_utf8_lossy(why).into_owned())
            }
            _ => None,
        },
        _ => None,
    }
}

pub(crate) fn token(digits: &[u8]) -> Result<Token> {
    let text = std::str::from_utf8(digits).ok();
    let number = text.and_then(|t| t.parse().ok()).and_then(Token::new);
    number.ok_or_else(|| strange("no token"))
}
