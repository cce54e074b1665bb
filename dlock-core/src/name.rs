//! The name of a lock.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, ErrorKind};

/// The name of a lock, or of a resource behind a fence gate: one or more bytes, compared byte for byte.
///
/// Names are not interpreted: no case folding, no trimming, no Unicode normalisation, no paths, no globs. Two
/// names are the same lock if and only if their bytes are the same. The backend limits the length
/// ([`Capabilities::max_name_len`](crate::Capabilities::max_name_len), at least 1 KiB), which is checked
/// before any I/O.
///
/// Cloning is cheap: the bytes are shared.
///
/// ```
/// # use dlock_core as dlock;
/// use dlock::LockName;
/// let name = LockName::new("orders/42").unwrap();
/// assert_eq!(name.to_string(), "orders/42");
/// assert!(LockName::new("").is_err());
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockName(Arc<[u8]>);

impl LockName {
    /// Creates a name from its bytes.
    ///
    /// # Errors
    /// `InvalidInput` if there are none.
    pub fn new(bytes: impl AsRef<[u8]>) -> Result<Self, Error> {
        let bytes = bytes.as_ref();
        if bytes.is_empty() {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "a lock name needs at least one byte",
            ));
        }
        Ok(Self(bytes.into()))
    }

    /// Returns the bytes of the name, exactly as given.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

macro_rules! name_of_bytes {
    ($($bytes:ty),*) => {
        $(impl TryFrom<$bytes> for LockName {
            type Error = Error;
            fn try_from(name: $bytes) -> Result<Self, Error> {
                Self::new(name)
            }
        })*
    };
}

name_of_bytes!(&str, String, &String, &[u8]);

/// Whatever names a lock, taken as its name.
pub(crate) fn name_of(name: impl TryInto<LockName, Error: Into<Error>>) -> Result<LockName, Error> {
    name.try_into().map_err(Into::into)
}

impl From<&LockName> for LockName {
    fn from(name: &LockName) -> Self {
        name.clone()
    }
}

/// Printable text is shown as it is; control characters and bytes that are not UTF-8 are escaped.
impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write as _;
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                if c.is_control() {
                    write!(f, "{}", c.escape_default())?;
                } else {
                    f.write_char(c)?;
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LockName({self})")
    }
}
