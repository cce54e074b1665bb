//! The resource side of fencing.

use std::fmt;

use async_trait::async_trait;

use crate::error::{Error, ErrorKind, Result};
use crate::name::{LockName, name_of};
use crate::token::Token;

/// The resource side of fencing: refuses holders whose token has been overtaken.
///
/// For each resource the gate remembers the largest token that came with exclusive access (`max_exclusive`)
/// and the largest that came at all (`max_any`). Exclusive access needs a token ≥ `max_any` and raises both;
/// shared access needs one ≥ `max_exclusive` and raises `max_any` only, so that readers and permits are
/// fenced against writers and never against one another. The same token may come again.
///
/// One resource takes tokens of *one* lock name of *one* backend; tokens of different names say nothing about
/// one another.
#[async_trait]
pub trait FenceGate: Send + Sync {
    /// Checks a token and remembers it. **Advisory**: between this answer and a write of your own a newer
    /// holder may come in. Use [`write`](Self::write), or the in-transaction form of the backend, when it
    /// matters.
    ///
    /// # Cancel safety
    /// Dropped, the token may be remembered or not. Asking again is safe: the same token may come again.
    ///
    /// # Errors
    /// As [`Lock::attempt`](crate::spi::Lock::attempt). A token that was overtaken is no error:
    /// [`Admission::Refused`].
    async fn admit(&self, resource: &LockName, token: Token, access: Access) -> Result<Admission>;

    /// Checks the token and, if it is admitted, stores `value`, in one step that nothing comes between.
    ///
    /// # Cancel safety
    /// Dropped, the value may be stored or not, and a copy that is on its way may be stored later, until a
    /// newer token comes. Writing again with the same token is admitted, and the last to arrive stands.
    ///
    /// # Errors
    /// As [`admit`](Self::admit). After `Unknown` the value may be stored.
    async fn write(&self, resource: &LockName, token: Token, value: &[u8]) -> Result<Admission>;

    /// What was last stored by [`write`](Self::write), and the tokens seen.
    ///
    /// A holder that computes a new value from it calls [`admit`](Self::admit) first. Else a write that an
    /// older holder has sent may arrive after this read, and the new value overwrites it unseen.
    ///
    /// # Cancel safety
    /// Only reads.
    ///
    /// # Errors
    /// As [`admit`](Self::admit).
    async fn read(&self, resource: &LockName) -> Result<Option<FencedValue>>;
}

/// The fence gate of a client, by the [rule of all gates](FenceGate). From
/// [`Client::gate`](crate::Client::gate).
///
/// A resource is named as a lock is: by text, by bytes, or by a [`LockName`], owned or borrowed.
///
/// # Examples
/// ```
/// # dlock_core::doc(|client| async move {
/// # use dlock_core as dlock;
/// use dlock::Admission;
/// let report = client.lock("report")?;
/// let old = report.acquire().await?.token().expect("this backend fences");
/// let new = report.acquire().await?.token().expect("this backend fences");
/// let gate = client.gate()?;
/// assert!(gate.write("report.json", new, b"{}").await?.is_admitted());
/// let late = gate.write(String::from("report.json"), old, b"").await?;
/// assert_eq!(late, Admission::Refused { highest: new });
/// # Ok(()) });
/// ```
#[derive(Clone, Copy)]
pub struct Gate<'a>(&'a dyn FenceGate);

impl<'a> Gate<'a> {
    pub(crate) fn new(gate: &'a dyn FenceGate) -> Self {
        Self(gate)
    }

    /// See [`FenceGate::admit`].
    ///
    /// # Cancel safety
    /// As there.
    ///
    /// # Errors
    /// As there; `InvalidInput` for a resource without a name.
    pub async fn admit(
        &self,
        resource: impl TryInto<LockName, Error: Into<Error>>,
        token: Token,
        access: Access,
    ) -> Result<Admission> {
        self.0.admit(&name_of(resource)?, token, access).await
    }

    /// See [`FenceGate::write`].
    ///
    /// # Cancel safety
    /// As there.
    ///
    /// # Errors
    /// As there; `InvalidInput` for a resource without a name.
    pub async fn write(
        &self,
        resource: impl TryInto<LockName, Error: Into<Error>>,
        token: Token,
        value: &[u8],
    ) -> Result<Admission> {
        self.0.write(&name_of(resource)?, token, value).await
    }

    /// See [`FenceGate::read`].
    ///
    /// # Cancel safety
    /// As there.
    ///
    /// # Errors
    /// As there; `InvalidInput` for a resource without a name.
    pub async fn read(
        &self,
        resource: impl TryInto<LockName, Error: Into<Error>>,
    ) -> Result<Option<FencedValue>> {
        self.0.read(&name_of(resource)?).await
    }

    /// The gate as a trait object, for code that takes any.
    pub fn as_dyn(self) -> &'a dyn FenceGate {
        self.0
    }
}

impl fmt::Debug for Gate<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").finish_non_exhaustive()
    }
}

/// How a resource is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Access {
    /// Under an exclusive lock.
    Exclusive,
    /// Under a shared lock or permit.
    Shared,
}

/// The answer of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub enum Admission {
    /// Go ahead (for `write`: it is written).
    Admitted,
    /// A newer holder has been here. Stop: your lock is lost.
    Refused {
        /// The token that was seen.
        highest: Token,
    },
}

impl Admission {
    /// Whether it was admitted.
    pub const fn is_admitted(self) -> bool {
        matches!(self, Self::Admitted)
    }
}

/// What begins the record of a fenced value.
const RECORD: &[u8] = b"dlock fence 1\n";

/// What a gate knows of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FencedValue {
    /// What was last written; empty if nothing was.
    pub value: Vec<u8>,
    /// The largest token that came with exclusive access.
    pub max_exclusive: Option<Token>,
    /// The largest token that came at all.
    pub max_any: Option<Token>,
}

impl FencedValue {
    /// As it stands in a store.
    pub fn new(value: Vec<u8>, max_exclusive: Option<Token>, max_any: Option<Token>) -> Self {
        Self {
            value,
            max_exclusive,
            max_any,
        }
    }

    /// The record of it, for a backend that keeps one for each resource.
    pub fn to_record(&self) -> Vec<u8> {
        let number = |t: Option<Token>| t.map_or(0, Token::get);
        let (exclusive, any) = (number(self.max_exclusive), number(self.max_any));
        let mut record = RECORD.to_vec();
        record.extend_from_slice(format!("exclusive={exclusive} any={any}\n").as_bytes());
        record.extend_from_slice(&self.value);
        record
    }

    /// Reads what [`to_record`](Self::to_record) wrote.
    ///
    /// # Errors
    /// `BackendData` if it is anything else.
    pub fn from_record(record: &[u8]) -> Result<Self> {
        let read = || {
            let rest = record.strip_prefix(RECORD)?;
            let end = rest.iter().position(|b| *b == b'\n')?;
            let numbers = str::from_utf8(&rest[..end]).ok()?;
            let (exclusive, any) = numbers.split_once(' ')?;
            let exclusive = exclusive.strip_prefix("exclusive=")?.parse().ok()?;
            let any = any.strip_prefix("any=")?.parse().ok()?;
            let value = rest[end + 1..].to_vec();
            Some(Self::new(value, Token::new(exclusive), Token::new(any)))
        };
        read().ok_or_else(|| {
            let message = "the fenced value was not written by dlock: remove it, or use another place";
            Error::new(ErrorKind::BackendData, message)
        })
    }

    /// The gate's rule, once for all stores that hold the row in hand: admits the token and raises what is
    /// remembered, or refuses and changes nothing.
    pub fn admit(&mut self, token: Token, access: Access) -> Admission {
        let bar = match access {
            Access::Exclusive => self.max_any,
            Access::Shared => self.max_exclusive,
        };
        match bar {
            Some(highest) if token < highest => Admission::Refused { highest },
            _ => {
                self.max_any = self.max_any.max(Some(token));
                if access == Access::Exclusive {
                    self.max_exclusive = self.max_exclusive.max(Some(token));
                }
                Admission::Admitted
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fenced_value_is_read_as_it_was_written() {
        for (value, exclusive, any) in [(&b""[..], 0, 0), (b"a\nb", 0, 7), (b"\xff", u64::MAX, u64::MAX)] {
            let fenced = FencedValue::new(value.to_vec(), Token::new(exclusive), Token::new(any));
            assert_eq!(FencedValue::from_record(&fenced.to_record()).unwrap(), fenced);
        }
        for foreign in ["", "x", "dlock fence 1\n", "dlock fence 1\nexclusive=1 any=\n"] {
            assert!(FencedValue::from_record(foreign.as_bytes()).is_err(), "{foreign}");
        }
        assert!(FencedValue::from_record(b"dlock fence 2\nexclusive=1 any=1\n").is_err());
    }
}
