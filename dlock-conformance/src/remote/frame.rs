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

/// What a client asks.
#[derive(Debug)]
pub(super) enum Request {
    Attempt(Acquire),
    Release(LeaseKey, Release),
    Abandon(Vec<LeaseKey>),
    Renew(Vec<RenewItem>),
    Convert(LeaseKey, Mode),
    Raise(LeaseKey, Token),
    Admit(LockName, Token, Access),
    Write(LockName, Token, Bytes),
    Read(LockName),
    Watch(LockName),
    Inspect(LockName),
    ForceRelease(LockName),
    /// Ends the watch of that number.
    Unwatch(u64),
    /// A change of the watch of that number was taken.
    Taken(u64),
}

/// The answer to an attempt: how a waiter is woken is not part of it.
pub(super) enum Answer {
    Granted(Grant),
    Queued(Option<Duration>, Option<u32>),
    Held(Option<Duration>, Option<u32>),
}
