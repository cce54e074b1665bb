//! A row that only the holder of its lock may change: read it, compute, and write it through the fence gate.

use dlock::{Access, Admission, Client, Error, ErrorKind, Held, LockName, LossReason, Token};

/// What the row holds; empty if nothing was written yet.
///
/// The gate sees the token *before* the row is read. A write that an older holder has sent may still be on
/// its way, and from here on the gate refuses it. So if our own write is admitted later, nothing has changed
/// the row in between.
///
/// # Errors
/// `Lost` if a newer holder has been here; otherwise as those of the gate.
pub async fn read(client: &Client, row: &LockName, held: &Held) -> dlock::Result<Vec<u8>> {
    let gate = client.gate()?;
    admitted(row, gate.admit(row, token(held)?, Access::Exclusive).await?)?;
    let fenced = gate.read(row).await?;
    Ok(fenced.map(|fenced| fenced.value).unwrap_or_default())
}

/// Writes the row, unless a newer holder has been here.
///
/// # Errors
/// `Lost` if one has: nothing was written. `Unknown` if the row may have been written or not. Otherwise as
/// those of the gate.
pub async fn write(client: &Client, row: &LockName, held: &Held, value: &[u8]) -> dlock::Result<()> {
    admitted(row, client.gate()?.write(row, token(held)?, value).await?)
}

fn token(held: &Held) -> dlock::Result<Token> {
    let message = "the store gives no fencing tokens";
    held.token()
        .ok_or_else(|| Error::new(ErrorKind::Unsupported, message))
}

fn admitted(row: &LockName, answer: Admission) -> dlock::Result<()> {
    match answer.is_admitted() {
        true => Ok(()),
        false => Err(Error::lost(LossReason::Refused).with_name(row)),
    }
}
