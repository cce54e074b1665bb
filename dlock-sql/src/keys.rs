//! How ids, modes and tokens are stored, in every SQL store.

use std::num::NonZeroU32;

use dlock_core::{Mode, RequestId, Result, Token};

use crate::failure::foreign;

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

/// Of a mode as it is stored: -1 exclusive, 0 a reader, n one of n permits.
pub(crate) fn read_mode(share: i64) -> Result<Mode> {
    match share {
        -1 => Ok(Mode::Exclusive),
        n => Ok(Mode::Shared {
            limit: NonZeroU32::new(u32::try_from(n).map_err(|_| foreign("an unknown mode"))?),
        }),
    }
}

pub(crate) fn read_token(n: i64) -> Result<Token> {
    let token = u64::try_from(n).ok().and_then(Token::new);
    token.ok_or_else(|| foreign("a token below one"))
}
