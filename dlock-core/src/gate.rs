//! The fence gate: the resource side of fencing.

use std::fmt;

use async_trait::async_trait;

use crate::error::{Error, ErrorKind, Result};
use crate::name::{LockName, name_of};
use crate::token::Token;

/// A fence gate: refuses holders whose token is older than one that it has seen. Users call it through
/// [`Gate`].
///
/// For each resource the gate remembers the largest token that came with exclusive access (`max_exclusive`)
/// and the largest that came with any (`max_any`). Exclusive access needs a token ≥ `max_any` and raises
/// both. Shared access needs a token ≥ `max_exclusive` and raises `max_any` only. So readers and permits are
/// fenced against writers, and never against one another. The same token may come again.
///
/// One resource takes tokens of *one* lock name of *one* backend. Tokens of different names cannot be
/// compared.
#[async_trait]
pub trait FenceGate: Send + Sync {
    /// Checks a token and remembers it.
    ///
    /// **Advisory**: between this answer and a write of your own a newer holder may come in. When it matters,
    /// use [`write`](Self::write), or the backend's form inside a transaction.
    ///
    /// # Cancel safety
    /// Dropped, the token may or may not be remembered. Calling it again is safe: the same token may come
    /// again.
    ///
    /// # Errors
    /// As [`Lock::attempt`](crate::spi::Lock::attempt). A stale token is no error, but
    /// [`Admission::Refused`].
    async fn admit(&self, resource: &LockName, token: Token, access: Access) -> Result<Admission>;

    /// Checks the token for exclusive access and, if it is admitted, stores `value`, in one atomic step.
    ///
    /// # Cancel safety
    /// Dropped, the value may or may not be stored, and a request in transit may store it later, until a
    /// newer token comes. Writing again with the same token is admitted, and the last write to arrive wins.
    ///
    /// # Errors
    /// As [`admit`](Self::admit). After `Unknown` the value may be stored.
    async fn write(&self, resource: &LockName, token: Token, value: &[u8]) -> Result<Admission>;

    /// Reads the value that [`write`](Self::write) stored last, and the tokens seen. `None` if the gate has
    /// no record of the resource.
    ///
    /// A holder that computes a new value from it calls [`admit`](Self::admit) first. Else a write that an
    /// older holder has sent may arrive after this read, and the new value overwrites it unseen.
    ///
    /// # Cancel safety
    /// Cancel safe: it only reads.
    ///
    /// # Errors
    /// As [`admit`](Self::admit).
    async fn read(&self, resource: &LockName) -> Result<Option<FencedValue>>;
}

/// The fence gate of a client: it checks a fencing token and writes in one step, so a holder that lost its
/// lock cannot overwrite newer data. From [`Client::gate`](crate::Client::gate); [`FenceGate`] has the rule.
///
/// A resource is named as a lock is, by text, bytes or a [`LockName`].
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

    /// Checks a token and remembers it: see [`FenceGate::admit`].
    ///
    /// # Cancel safety
    /// As [`FenceGate::admit`].
    ///
    /// # Errors
    /// As [`FenceGate::admit`]; `InvalidInput` for an empty resource name.
    pub async fn admit(
        &self,
        resource: impl TryInto<LockName, Error: Into<Error>>,
        token: Token,
        access: Access,
    ) -> Result<Admission> {
        self.0.admit(&name_of(resource)?, token, access).await
    }

    /// Checks the token and stores `value` in one step: see [`FenceGate::write`].
    ///
    /// # Cancel safety
    /// As [`FenceGate::write`].
    ///
    /// # Errors
    /// As [`FenceGate::write`]; `InvalidInput` for an empty resource name.
    pub async fn write(
        &self,
        resource: impl TryInto<LockName, Error: Into<Error>>,
        token: Token,
        value: &[u8],
    ) -> Result<Admission> {
        self.0.write(&name_of(resource)?, token, value).await
    }

    /// Reads the stored value and the tokens seen: see [`FenceGate::read`].
    ///
    /// # Cancel safety
    /// Cancel safe: it only reads.
    ///
    /// # Errors
    /// As [`FenceGate::read`]; `InvalidInput` for an empty resource name.
    ///
    /// # Examples
    /// A read, a computation and a write, safe against a newer holder:
    /// ```
    /// # dlock_core::doc(|client| async move {
    /// let guard = client.lock("stock/42")?.acquire().await?;
    /// let token = guard.token().expect("this backend fences");
    /// let gate = client.gate()?;
    /// let stock = gate.read("stock/42").await?.map(|fenced| fenced.value).unwrap_or_default();
    /// let sold = [stock, vec![b'.']].concat();
    /// if !gate.write("stock/42", token, &sold).await?.is_admitted() {
    ///     println!("the lock was lost meanwhile, and nothing was written");
    /// }
    /// # Ok(()) });
    /// ```
    pub async fn read(
        &self,
        resource: impl TryInto<LockName, Error: Into<Error>>,
    ) -> Result<Option<FencedValue>> {
        self.0.read(&name_of(resource)?).await
    }

    /// Returns the gate as a trait object.
    pub fn as_dyn(self) -> &'a dyn FenceGate {
        self.0
    }
}

impl fmt::Debug for Gate<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").finish_non_exhaustive()
    }
}

/// How a resource is accessed.
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
    /// The token was admitted. For `write`: the value is stored.
    Admitted,
    /// A newer holder has been here. Stop: the lock is lost.
    Refused {
        /// The largest token seen, which is newer.
        highest: Token,
    },
}

impl Admission {
    /// Returns whether the token was admitted.
    pub const fn is_admitted(self) -> bool {
        matches!(self, Self::Admitted)
    }
}

/// What begins the record of a fenced value.
const RECORD: &[u8] = b"dlock fence 1\n";

/// The record of a gate for one resource. From [`Gate::read`].
///
/// # Examples
/// ```
/// # use dlock_core as dlock;
/// use dlock::{Access, FencedValue, Token};
/// let (old, new) = (Token::new(33).unwrap(), Token::new(34).unwrap());
/// let mut fenced = FencedValue::new(b"12 left".to_vec(), None, None);
/// assert!(fenced.admit(new, Access::Exclusive).is_admitted());
/// assert!(!fenced.admit(old, Access::Exclusive).is_admitted());
/// assert_eq!(fenced.max_exclusive, Some(new));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FencedValue {
    /// The value that was written last; empty if none was.
    pub value: Vec<u8>,
    /// The largest token that came with exclusive access.
    pub max_exclusive: Option<Token>,
    /// The largest token that came with any access.
    pub max_any: Option<Token>,
}

impl FencedValue {
    /// Creates a record from its parts.
    pub fn new(value: Vec<u8>, max_exclusive: Option<Token>, max_any: Option<Token>) -> Self {
        Self {
            value,
            max_exclusive,
            max_any,
        }
    }

    /// Encodes the record as bytes, for backends that store one per resource.
    pub fn to_record(&self) -> Vec<u8> {
        let number = |t: Option<Token>| t.map_or(0, Token::get);
        let (exclusive, any) = (number(self.max_exclusive), number(self.max_any));
        let mut record = RECORD.to_vec();
        record.extend_from_slice(format!("exclusive={exclusive} any={any}\n").as_bytes());
        record.extend_from_slice(&self.value);
        record
    }

    /// Decodes what [`to_record`](Self::to_record) encoded.
    ///
    /// # Errors
    /// `BackendData` if the bytes are anything else.
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
            let message = "the record of this resource was not written by dlock: remove it, or use another \
                resource name";
            Error::new(ErrorKind::BackendData, message)
        })
    }

    /// Applies the gate's rule: admits the token and remembers it, or refuses it and changes nothing. For
    /// backends that hold the record in a lock or transaction.
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
