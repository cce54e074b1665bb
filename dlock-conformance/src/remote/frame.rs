//! Frames: four bytes of length, eight of a number that requests and their answers share, one of kind, the
//! rest.

use std::io;
use std::time::Duration;

use dlock_core::spi::{Acquire, Grant, LeaseKey, Release, RenewItem};
use dlock_core::{Access, LockName, Mode, Token};
use futures::io::{AsyncRead, AsyncReadExt};

use super::codec::{Bytes, Wire};

/// Longer than any request or reply: what claims to be longer is not ours.
const LONGEST: u32 = 64 << 20;

/// What a frame of the server is about.
pub(super) mod kind {
    /// The answer to a request.
    pub(in super::super) const REPLY: u8 = 0;
    /// It pays to ask again for the queued request.
    pub(in super::super) const PUSH: u8 = 1;
    /// An item of a watch stream.
    pub(in super::super) const CHANGE: u8 = 2;
    /// No push and no item follows.
    pub(in super::super) const END: u8 = 3;
    /// The only one of the client.
    pub(in super::super) const REQUEST: u8 = 4;
}

pub(super) struct Frame {
    pub(super) number: u64,
    pub(super) kind: u8,
    pub(super) body: Vec<u8>,
}

pub(super) fn frame(number: u64, kind: u8, body: &impl Wire) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    number.put(&mut bytes);
    kind.put(&mut bytes);
    body.put(&mut bytes);
    let length = u32::try_from(bytes.len() - 4).unwrap_or(u32::MAX);
    bytes[..4].copy_from_slice(&length.to_be_bytes());
    bytes
}

pub(super) async fn read_frame(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Frame> {
    let mut length = [0; 4];
    from.read_exact(&mut length).await?;
    let length = u32::from_be_bytes(length);
    if length > LONGEST {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; length as usize];
    from.read_exact(&mut bytes).await?;
    let mut rest = &bytes[..];
    let (Some(number), Some(kind)) = (u64::take(&mut rest), u8::take(&mut rest)) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let body = rest.to_vec();
    Ok(Frame { number, kind, body })
}

macro_rules! requests {
    ($($kind:literal $variant:ident($($field:ident: $type:ty),*),)+) => {
        /// What a client asks.
        #[derive(Debug)]
        pub(super) enum Request {
            $($variant($($type),*),)+
        }

        impl Wire for Request {
            fn put(&self, to: &mut Vec<u8>) {
                match self {
                    $(Self::$variant($($field),*) => {
                        let kind: u8 = $kind;
                        kind.put(to);
                        $($field.put(to);)*
                    })+
                }
            }
            fn take(from: &mut &[u8]) -> Option<Self> {
                Some(match u8::take(from)? {
                    $($kind => Self::$variant($(<$type>::take(from)?),*),)+
                    _ => return None,
                })
            }
        }
    };
}

requests! {
    0 Attempt(request: Acquire),
    1 Release(key: LeaseKey, how: Release),
    2 Abandon(keys: Vec<LeaseKey>),
    3 Renew(items: Vec<RenewItem>),
    4 Convert(key: LeaseKey, to_mode: Mode),
    5 Raise(key: LeaseKey, token: Token),
    6 Admit(name: LockName, token: Token, access: Access),
    7 Write(name: LockName, token: Token, value: Bytes),
    8 Read(name: LockName),
    9 Watch(name: LockName),
    10 Inspect(name: LockName),
    11 ForceRelease(name: LockName),
    12 Unwatch(watch: u64),
    13 Taken(watch: u64),
}

/// The answer to an attempt: how a waiter is woken is not part of it.
pub(super) enum Answer {
    Granted(Grant),
    Queued(Option<Duration>, Option<u32>),
    Held(Option<Duration>, Option<u32>),
}

impl Wire for Answer {
    fn put(&self, to: &mut Vec<u8>) {
        match self {
            Self::Granted(grant) => (0_u8, grant.clone()).put(to),
            Self::Queued(recheck_in, ahead) => (1_u8, (*recheck_in, *ahead)).put(to),
            Self::Held(recheck_in, ahead) => (2_u8, (*recheck_in, *ahead)).put(to),
        }
    }
    fn take(from: &mut &[u8]) -> Option<Self> {
        Some(match u8::take(from)? {
            0 => Self::Granted(Wire::take(from)?),
            1 => Self::Queued(Wire::take(from)?, Wire::take(from)?),
            2 => Self::Held(Wire::take(from)?, Wire::take(from)?),
            _ => return None,
        })
    }
}
