//! Values as bytes: fixed-width numbers, lengths before what has one.

use std::time::Duration;

use dlock_core::Result;

/// A value that travels. Bytes that are none of it are `None`, never a panic.
pub(super) trait Wire: Sized {
    fn put(&self, to: &mut Vec<u8>);
    fn take(from: &mut &[u8]) -> Option<Self>;
}

/// The value that all of those bytes are.
pub(super) fn decode<T: Wire>(mut bytes: &[u8]) -> Option<T> {
    let value = T::take(&mut bytes)?;
    bytes.is_empty().then_some(value)
}

fn split<'a>(from: &mut &'a [u8], n: usize) -> Option<&'a [u8]> {
    let (head, tail) = from.split_at_checked(n)?;
    *from = tail;
    Some(head)
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Wire for $number {
            fn put(&self, to: &mut Vec<u8>) {
                to.extend_from_slice(&self.to_be_bytes());
            }
            fn take(from: &mut &[u8]) -> Option<Self> {
                let bytes = split(from, size_of::<Self>())?;
                Some(Self::from_be_bytes(bytes.try_into().ok()?))
            }
        }
    )*};
}
numbers!(u8, u32, u64, u128);

impl Wire for bool {
    fn put(&self, to: &mut Vec<u8>) {
        u8::from(*self).put(to);
    }
    fn take(from: &mut &[u8]) -> Option<Self> {
        Some(u8::take(from)? != 0)
    }
}

impl Wire for () {
    fn put(&self, _: &mut Vec<u8>) {}
    fn take(_: &mut &[u8]) -> Option<Self> {
        Some(())
    }
}

impl Wire for Duration {
    fn put(&self, to: &mut Vec<u8>) {
        self.as_secs().put(to);
        self.subsec_nanos().put(to);
    }
    fn take(from: &mut &[u8]) -> Option<Self> {
        let (seconds, nanos) = (u64::take(from)?, u32::take(from)?);
        (nanos < 1_000_000_000).then(|| Self::new(seconds, nanos))
    }
}

/// Bytes as one piece, not one by one.
#[derive(Debug)]
pub(super) struct Bytes(pub(super) Vec<u8>);

impl Wire for Bytes {
    fn put(&self, to: &mut Vec<u8>) {
        (self.0.len() as u64).put(to);
        to.extend_from_slice(&self.0);
    }
    fn take(from: &mut &[u8]) -> Option<Self> {
        let n = usize::try_from(u64::take(from)?).ok()?;
        split(from, n).map(|bytes| Self(bytes.to_vec()))
    }
}

impl Wire for String {
    fn put(&self, to: &mut Vec<u8>) {
        Bytes(self.clone().into_bytes()).put(to);
    }
    fn take(from: &mut &[u8]) -> Option<Self> {
        Self::from_utf8(Bytes::take(from)?.0).ok()
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, to: &mut Vec<u8>) {
        self.is_some().put(to);
        self.iter().for_each(|value| value.put(to));
    }
    fn take(from: &mut &[u8]) -> Option<Self> {
        Some(match bool::take(from)? {
            true => Some(T::take(from)?),
            false => None,
        })
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn put(&self, to: &mut Vec<u8>) {
        (self.len() as u64).put(to);
        self.iter().for_each(|value| value.put(to));
    }
    fn take(from: &mut &[u8]) -> Option<Self> {
        (0..u64::take(from)?).map(|_| T::take(from)).collect()
    }
}

impl<T: Wire> Wire for Result<T> {
    fn put(&self, to: &mut Vec<u8>) {
        self.is_ok().put(to);
        match self {
            Ok(value) => value.put(to),
            Err(error) => error.put(to),
        }
    }
    fn take(from: &mut &[u8]) -> Option<Self> {
        Some(match bool::take(from)? {
            true => Ok(T::take(from)?),
            false => Err(Wire::take(from)?),
        })
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    fn put(&self, to: &mut Vec<u8>) {
        self.0.put(to);
        self.1.put(to);
    }
    fn take(from: &mut &[u8]) -> Option<Self> {
        Some((A::take(from)?, B::take(from)?))
    }
}
