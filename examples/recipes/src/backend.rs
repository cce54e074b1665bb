//! Choosing the store by an environment variable.

use std::env::{self, VarError};
use std::time::Duration;

use dlock::{Client, Error, ErrorKind, LockOptions};

/// Connects to the store that `DLOCK_URL` names.
///
/// A development build falls back to `memory://`. A store in memory excludes no other process, so a release
/// build requires the variable.
///
/// # Errors
/// As those of [`dlock::connect`]; `Unsupported` if the store has no fence gate.
pub async fn connect() -> dlock::Result<Client> {
    let url = match env::var("DLOCK_URL") {
        Ok(url) => url,
        Err(VarError::NotPresent) if cfg!(debug_assertions) => "memory://".to_owned(),
        Err(e) => {
            let message = "DLOCK_URL does not name a store: set it to a URL such as redis://locks.example";
            return Err(Error::new(ErrorKind::InvalidInput, message).with_source(e));
        }
    };
    // A request waits this long for a lock, unless its handle sets another limit.
    let defaults = LockOptions::new().wait_limit(Duration::from_secs(2));
    let client = dlock::connect(url).defaults(defaults).await?;
    // These programs need a gate. A store without one is an error now, and not at the first request.
    client.gate()?;
    Ok(client)
}
