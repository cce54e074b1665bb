//! How values are stored, in all tables of locks.

use std::fmt::Write as _;
use std::num::NonZeroU32;

use dlock_core::{Mode, RequestId, Result, Token};
use sqlx::{ColumnIndex, Decode, Row, Type};

use crate::failure::foreign;

/// The stored mode of an exclusive holder. A reader has 0, one of n permits n.
pub(crate) const ALONE: i64 = -1;

/// One more value of a statement.
#[cfg(any(feature = "sqlite", feature = "mysql"))]
pub(crate) fn bind<'q, A: sqlx::Arguments, T>(args: &mut A, value: T) -> Result<()>
where
    T: sqlx::Encode<'q, A::Database> + Type<A::Database> + 'q,
{
    let added = args.add(value);
    added.map_err(|e| crate::failure::invalid(format!("a value cannot be stored: {e}")))
}

/// A column of a row of ours.
pub(crate) fn get<'r, T, R: Row>(row: &'r R, column: usize) -> Result<T>
where
    T: Decode<'r, R::Database> + Type<R::Database>,
    usize: ColumnIndex<R>,
{
    row.try_get(column)
        .map_err(|_| foreign("a column of another type"))
}

/// In small hexadecimal digits, as `encode(…, 'hex')` of PostgreSQL writes it.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // A string takes everything.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Sixteen bytes of the client, eight of the request.
pub(crate) fn id_bytes(id: RequestId) -> [u8; 24] {
    let mut bytes = [0; 24];
    bytes[..16].copy_from_slice(&id.client().to_be_bytes());
    bytes[16..].copy_from_slice(&id.sequence().to_be_bytes());
    bytes
}

pub(crate) fn read_id(bytes: &[u8]) -> Result<RequestId> {
    let (client, sequence) = bytes.split_at_checked(16).unwrap_or_default();
    match (client.try_into(), sequence.try_into()) {
        (Ok(client), Ok(sequence)) => Ok(RequestId::new(
            u128::from_be_bytes(client),
            u64::from_be_bytes(sequence),
        )),
        _ => Err(foreign("a request id of another length")),
    }
}

pub(crate) fn read_mode(share: i64) -> Result<Mode> {
    match share {
        ALONE => Ok(Mode::Exclusive),
        n => Ok(Mode::Shared {
            limit: NonZeroU32::new(u32::try_from(n).map_err(|_| foreign("an unknown mode"))?),
        }),
    }
}

pub(crate) fn read_token(n: i64) -> Result<Token> {
    let token = u64::try_from(n).ok().and_then(Token::new);
    token.ok_or_else(|| foreign("a token below one"))
}
