//! The error type.

use std::borrow::Cow;
use std::convert::Infallible;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use crate::name::LockName;

/// A result whose error is an [`Error`] unless given.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of an [`Error`], named by what the caller does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The wait limit was reached. Nothing is held or queued. Try again later.
    Timeout,
    /// The hold had ended before this call. Stop the work that needs the lock.
    Lost,
    /// The request was sent, and its outcome is not known. The lock may be held; the engine continues to undo
    /// that. Try again later.
    Unknown,
    /// A name, ttl, option, URL or permit count is wrong. Correct the call.
    InvalidInput,
    /// The backend does not claim the capability. Nothing was sent.
    Unsupported,
    /// A limit that the backend declares is reached. Try again later.
    LimitReached,
    /// The store cannot be reached. Nothing took effect. Try again later.
    Unavailable,
    /// The store refuses this user. Grant the missing right.
    PermissionDenied,
    /// The store has data under one of our keys that dlock did not write. An operator must look at it.
    BackendData,
    /// The client was closed.
    Closed,
}

/// Why a hold ended. From [`Guard::loss`](crate::Guard::loss), [`Guard::lost`](crate::Guard::lost) and
/// [`Error::loss_reason`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossReason {
    /// The deadline passed without a confirmed renewal.
    Expired,
    /// The store reported that the lease is not held any more.
    Refused,
    /// The session or connection that the hold depended on has ended.
    SessionLost,
    /// The maximum hold was reached.
    MaxHold,
    /// The client was closed, or the runtime of its keeper has ended.
    Closed,
    /// The lock was released by this guard.
    Released,
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "its deadline passed without a confirmed renewal",
            Self::Refused => "the store says that it is not held",
            Self::SessionLost => "the session that it depended on has ended",
            Self::MaxHold => "its maximum hold was reached",
            Self::Closed => "its client was closed",
            Self::Released => "it was released",
        })
    }
}

type Source = Arc<dyn StdError + Send + Sync + 'static>;

/// The error of a lock operation: a [`kind`](Error::kind), a message and possibly a cause. Cheap to clone.
///
/// `Display` writes one clause without the cause, for which see [`source`](StdError::source). It never
/// contains a secret.
///
/// # Examples
/// ```
/// # dlock_core::doc(|client| async move {
/// # use dlock_core as dlock;
/// use std::time::Duration;
/// use dlock::ErrorKind;
/// let lock = client.lock("import")?;
/// let guard = lock.acquire().await?;
/// match lock.acquire_timeout(Duration::from_millis(20)).await {
///     Ok(second) => second.release().await?,
///     Err(e) if e.kind() == ErrorKind::Timeout => println!("somebody else imports: {e}"),
///     Err(e) if e.is_retryable() => println!("try again later: {e}"),
///     Err(e) => return Err(e),
/// }
/// # drop(guard);
/// # Ok(()) });
/// ```
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: Cow<'static, str>,
    name: Option<LockName>,
    /// What has that name: a lock, or a resource behind a gate.
    named: &'static str,
    loss: Option<LossReason>,
    source: Option<Source>,
}

impl Error {
    /// Creates an error. `message` is a lower-case clause that says what happened and what to do, and
    /// contains no secret.
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Inner {
            kind,
            message: message.into(),
            name: None,
            named: "lock",
            loss: None,
            source: None,
        }))
    }

    /// Creates the error of a hold that has ended, of kind [`ErrorKind::Lost`].
    pub fn lost(reason: LossReason) -> Self {
        let mut e = Self::new(ErrorKind::Lost, "the lock is not held any more");
        e.0.loss = Some(reason);
        e
    }

    /// Adds the name of the lock, unless the error has one.
    #[must_use]
    pub fn with_name(mut self, name: &LockName) -> Self {
        self.0.name.get_or_insert_with(|| name.clone());
        self
    }

    /// Says which resource behind a gate it was about.
    #[must_use]
    pub(crate) fn with_resource(mut self, name: &LockName) -> Self {
        self.0.named = "resource";
        self.with_name(name)
    }

    /// Says the name differently, for combinators that rename; `None` forgets it.
    #[must_use]
    pub(crate) fn map_name(mut self, f: impl FnOnce(&LockName) -> Option<LockName>) -> Self {
        self.0.name = self.0.name.as_ref().and_then(f);
        self
    }

    /// Adds the cause, which must not contain a secret.
    #[must_use]
    pub fn with_source(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.0.source = Some(Arc::new(source));
        self
    }

    /// Keeps that error as the cause, if there is one.
    #[must_use]
    pub(crate) fn caused_by(self, cause: Option<Self>) -> Self {
        match cause {
            Some(cause) => self.with_source(cause),
            None => self,
        }
    }

    /// Returns the kind, which says what to do next.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the name of the lock, if the error is about one.
    pub fn name(&self) -> Option<&LockName> {
        self.0.name.as_ref()
    }

    /// Returns why the hold ended, for errors of kind [`ErrorKind::Lost`].
    pub fn loss_reason(&self) -> Option<LossReason> {
        self.0.loss
    }

    /// Returns whether the same call may succeed later, with nothing changed.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self.0.kind,
            ErrorKind::Timeout | ErrorKind::Unknown | ErrorKind::Unavailable | ErrorKind::LimitReached
        )
    }

    /// Returns whether the store may have the lock in the caller's name after this error. The engine
    /// continues to undo that, and it expires with its ttl at the latest.
    pub fn may_be_held(&self) -> bool {
        self.0.kind == ErrorKind::Unknown
    }
}

/// What is a [`LockName`] already is taken as one.
impl From<Infallible> for Error {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        if let Some(reason) = self.0.loss {
            write!(f, ": {reason}")?;
        }
        if let Some(name) = &self.0.name {
            write!(f, " ({} `{name}`)", self.0.named)?;
        }
        Ok(())
    }
}

/// In words and on one line, since this is what a program prints that returns it from `main`: the message,
/// the kind, and the causes, each in its own words.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} [{:?}]", self.0.kind)?;
        let mut told = String::new();
        for cause in std::iter::successors(self.source(), |&cause| cause.source()) {
            let words = cause.to_string();
            // Many say in their own words what caused them.
            if !told.contains(&words) {
                write!(f, ": {words}")?;
                told = words;
            }
        }
        Ok(())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_ref().map(|s| &**s as _)
    }
}
