//! The requests and replies of the service provider interface as bytes.
//!
//! Their types are open for more: what is not known here travels as a kind that nobody reads, and the other
//! end says so.

use std::sync::Arc;

use dlock_core::spi::{
    Abandoned, Acquire, Converted, Grant, LeaseKey, Queueing, Raised, Release, Released, RenewItem,
    RenewKind, RenewOutcome, Renewal,
};
use dlock_core::{
    Access, Admission, Change, Error, ErrorKind, FencedValue, Holder, Inspection, LockName, LossReason, Mode,
    RequestId, Timestamp, Token,
};

use super::codec::{Bytes, Wire};
use super::frame::{Answer, Request};

/// The kind of a variant that this protocol does not know.
const STRANGE: u8 = u8::MAX;

/// Enums without fields, by their place in a list.
macro_rules! kinds {
    ($type:ty: $($variant:path),+ $(,)?) => {
        impl Wire for $type {
            fn put(&self, to: &mut Vec<u8>) {
                let place = [$($variant),+].iter().position(|v| v == self);
                place.and_then(|p| u8::try_from(p).ok()).unwrap_or(STRANGE).put(to);
            }
            fn take(from: &mut &[u8]) -> Option<Self> {
                [$($variant),+].get(usize::from(u8::take(from)?)).copied()
            }
        }
    };
}

kinds!(ErrorKind: ErrorKind::Timeout, ErrorKind::Lost, ErrorKind::Unknown, ErrorKind::InvalidInput, ErrorKind::Unsupported,
    ErrorKind::LimitReached, ErrorKind::Unavailable, ErrorKind::PermissionDenied, ErrorKind::BackendData, ErrorKind::Closed);
kinds!(LossReason: LossReason::Expired, LossReason::Refused, LossReason::SessionLost, LossReason::MaxHold, LossReason::Closed,
    LossReason::Released);
kinds!(Queueing: Queueing::No, Queueing::Join);
kinds!(Released: Released::Released, Released::NotHeld);
kinds!(Access: Access::Exclusive, Access::Shared);
kinds!(RenewKind: RenewKind::Lease, RenewKind::Queued);

/// Structs, field by field, and how they are made of these.
macro_rules! fields {
    ($type:ty: $value:ident { $($put:expr),+ } [ $($field:ident),+ ] => $made:expr) => {
        impl Wire for $type {
            fn put(&self, to: &mut Vec<u8>) {
                let $value = self;
                $($put.put(to);)+
            }
            fn take(from: &mut &[u8]) -> Option<Self> {
                $(let $field = Wire::take(from)?;)+
                Some($made)
            }
        }
    };
}

fields!(RequestId: v { v.client(), v.sequence() } [client, sequence] => Self::new(client, sequence));
fields!(LeaseKey: v { v.name, v.id } [name, id] => Self::new(name, id));
fields!(RenewItem: v { v.key, v.kind, v.ttl } [key, kind, ttl] => {
    let (key, ttl) = (key, ttl);
    match kind {
        RenewKind::Queued => Self::queued(key, ttl),
        _ => Self::lease(key, ttl),
    }
});
// When a life began to count is the client's to say.
fields!(Grant: v { v.key, v.token, v.expires_in, v.provisional } [key, token, expires_in, provisional] => {
    let mut grant = Self::new(key, token, Timestamp::ZERO, expires_in);
    grant.provisional = provisional;
    grant
});
fields!(Renewal: v { v.expires_in } [expires_in] => Self::new(Timestamp::ZERO, expires_in));
fields!(FencedValue: v { Bytes(v.value.clone()), v.max_exclusive, v.max_any } [value, exclusive, any] => {
    let value: Bytes = value;
    Self::new(value.0, exclusive, any)
});
fields!(Holder: v { v.id, v.mode, v.token, v.expires_in, v.owner } [id, mode, token, expires_in, owner] => {
    Self::new(id, mode, token, expires_in).with_owner(owner)
});
fields!(Inspection: v { v.holders, v.waiting } [holders, waiting] => Self::new(holders, waiting));
fields!(Acquire: v { v.key, v.mode, v.ttl, v.queue, v.queue_ttl, v.priority, v.owner, v.waits }
[key, mode, ttl, queue, queue_ttl, priority, owner, waits] => {
    let mut acquire = Self::new(key, ttl).with_mode(mode).with_priority(priority);
    acquire.queue = queue;
    acquire.queue_ttl = queue_ttl;
    acquire.owner = owner;
    acquire.waits = waits;
    acquire
});

impl Wire for LockName {
    fn put(&self, to: &mut Vec<u8>) {
        Bytes(self.as_bytes().to_vec()).put(to);
    }
    fn take(from: &mut &[u8]) -> Option<Self> {
        Self::new(Bytes::take(from)?.0).ok()
    }
}

impl Wire for Arc<str> {
    fn put(&self, to: &mut Vec<u8>) {
        self.to_string().put(to);
    }
    fn take(from: &mut &[u8]) -> Option<Self> {
        Some(String::take(from)?.into())
    }
}

impl Wire for Token {
    fn put(&self, to: &mut Vec<u8>) {
        self.get().put(to);
    }
    fn take(from: &mut &[u8]) -> Option<Self> {
        Self::new(u64::take(from)?)
    }
}

/// 0 exclusive, 1 reader, n + 1 one of n permits.
impl Wire for Mode {
    fn put(&self, to: &mut Vec<u8>) {
        let n = match self {
            Self::Exclusive => 0,
            Self::Shared { limit: None } => 1,
            Self::Shared { limit: Some(n) } => u64::from(n.get()) + 1,
            _ => u64::MAX,
        };
        n.put(to);
    }
    fn take(from: &mut &[u8]) -> Option<Self> {
        Some(match u64::take(from)? {
            0 => Self::Exclusive,
            1 => Self::READER,
            n => Self::permit(u32::try_from(n - 1).ok()?.try_into().ok()?),
        })
    }
}

/// The cause stays behind, as behind any server.
impl Wire for Error {
    fn put(&self, to: &mut Vec<u8>) {
        self.kind().put(to);
        self.loss_reason().put(to);
        let mut text = self.to_string();
        if let Some(name) = self.name() {
            let named = format!(" (lock `{name}`)");
            text.truncate(text.strip_suffix(&named).unwrap_or(&text).len());
        }
        text.put(to);
    }
    fn take(from: &mut &[u8]) -> Option<Self> {
        let (kind, loss): (ErrorKind, Option<LossReason>) = Wire::take(from)?;
        let text = String::take(from)?;
        Some(match loss {
            Some(reason) => Self::lost(reason),
            None => Self::new(kind, text),
        })
    }
}

/// Enums with fields: a kind, then what belongs to it.
macro_rules! variants {
    ($type:ty: $($kind:literal $pattern:pat => [$($put:expr),*], [$($field:ident),*] => $made:expr;)+) => {
        impl Wire for $type {
            #[allow(unreachable_patterns)] // some of them cannot grow
            fn put(&self, to: &mut Vec<u8>) {
                match self {
                    $($pattern => {
                        let kind: u8 = $kind;
                        kind.put(to);
                        $($put.put(to);)*
                    })+
                    _ => STRANGE.put(to),
                }
            }
            fn take(from: &mut &[u8]) -> Option<Self> {
                Some(match u8::take(from)? {
                    $($kind => {
                        $(let $field = Wire::take(from)?;)*
                        $made
                    })+
                    _ => return None,
                })
            }
        }
    };
}

variants!(Release:
    0 Self::Now => [], [] => Self::Now;
    1 Self::KeepFor(d) => [d], [d] => Self::KeepFor(d);
);
variants!(Abandoned:
    0 Self::Nothing => [], [] => Self::Nothing;
    1 Self::Withdrawn => [], [] => Self::Withdrawn;
    2 Self::WasGranted(token) => [token], [token] => Self::WasGranted(token);
);
variants!(Converted:
    0 Self::Done(grant) => [grant], [grant] => Self::Done(grant);
    1 Self::Busy => [], [] => Self::Busy;
    2 Self::WouldDeadlock => [], [] => Self::WouldDeadlock;
);
variants!(Raised:
    0 Self::Raised(token) => [token], [token] => Self::Raised(token);
    1 Self::NotHeld => [], [] => Self::NotHeld;
);
variants!(Admission:
    0 Self::Admitted => [], [] => Self::Admitted;
    1 Self::Refused { highest } => [highest], [highest] => Self::Refused { highest };
);
variants!(RenewOutcome:
    0 Self::Renewed(renewal) => [renewal], [renewal] => Self::Renewed(renewal);
    1 Self::Granted(grant) => [grant], [grant] => Self::Granted(grant);
    2 Self::Queued { recheck_in, ahead } => [recheck_in, ahead], [recheck_in, ahead] => Self::Queued { recheck_in, ahead };
    3 Self::Gone => [], [] => Self::Gone;
    4 Self::Failed(error) => [error], [error] => Self::Failed(error);
);
variants!(Change:
    0 Self::Snapshot { now, skipped } => [now, skipped], [now, skipped] => Self::Snapshot { now, skipped };
    1 Self::Granted(holder) => [holder], [holder] => Self::Granted(holder);
    2 Self::Released { id } => [id], [id] => Self::Released { id };
    3 Self::Expired { id } => [id], [id] => Self::Expired { id };
    4 Self::Forced { id } => [id], [id] => Self::Forced { id };
);
variants!(Answer:
    0 Self::Granted(grant) => [grant], [grant] => Self::Granted(grant);
    1 Self::Queued(recheck_in, ahead) => [recheck_in, ahead], [recheck_in, ahead] => Self::Queued(recheck_in, ahead);
    2 Self::Held(recheck_in, ahead) => [recheck_in, ahead], [recheck_in, ahead] => Self::Held(recheck_in, ahead);
);
variants!(Request:
    0 Self::Attempt(request) => [request], [request] => Self::Attempt(request);
    1 Self::Release(key, how) => [key, how], [key, how] => Self::Release(key, how);
    2 Self::Abandon(keys) => [keys], [keys] => Self::Abandon(keys);
    3 Self::Renew(items) => [items], [items] => Self::Renew(items);
    4 Self::Convert(key, to) => [key, to], [key, to] => Self::Convert(key, to);
    5 Self::Raise(key, token) => [key, token], [key, token] => Self::Raise(key, token);
    6 Self::Admit(name, token, access) => [name, token, access], [name, token, access] => Self::Admit(name, token, access);
    7 Self::Write(name, token, value) => [name, token, value], [name, token, value] => Self::Write(name, token, value);
    8 Self::Read(name) => [name], [name] => Self::Read(name);
    9 Self::Watch(name) => [name], [name] => Self::Watch(name);
    10 Self::Inspect(name) => [name], [name] => Self::Inspect(name);
    11 Self::ForceRelease(name) => [name], [name] => Self::ForceRelease(name);
    12 Self::Unwatch(watch) => [watch], [watch] => Self::Unwatch(watch);
    13 Self::Taken(watch) => [watch], [watch] => Self::Taken(watch);
);
