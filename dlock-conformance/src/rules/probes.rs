//! Uses each capability once, for the rules that compare claims with behaviour.

use dlock_core::spi::{self, Attempt, LeaseKey, Raised, Release};
use dlock_core::{Capability, Mode, RequestId, Result};
use futures::StreamExt;

use super::prelude::*;
use crate::subject::Upgraded;

/// The result, if it was no error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It did what was requested.
    Served,
    /// It answered something unexpected, and no error.
    Wrong(String),
    /// The subject has no such part.
    Absent,
    /// A user cannot request this on its own.
    NotReachable,
}

/// Uses that capability of that client on that name, and leaves nothing behind.
pub(super) async fn exercise(
    cx: &Cx,
    client: &dyn Subject,
    name: &LockName,
    capability: Capability,
) -> Result<Answer> {
    let ask = cx.ask();
    match capability {
        Capability::Shared => hold(client, name, &ask.reader()).await,
        Capability::Permits => hold(client, name, &ask.permit(2)).await,
        Capability::Priority => hold(client, name, &ask.priority(9)).await,
        Capability::OwnerLabel => hold(client, name, &ask.label("me")).await,
        Capability::MinimumHold => {
            let least = ms(1);
            let answer = hold(client, name, &ask.min_hold(least)).await;
            cx.sleep(least * 2).await;
            answer
        }
        Capability::Renew => {
            let held = client.acquire(name, &ask).await?;
            let renewed = held.renew().await;
            held.release().await?;
            renewed.map(|()| Answer::Served)
        }
        Capability::Fencing => {
            let held = client.acquire(name, &ask).await?;
            let token = held.token();
            held.release().await?;
            Ok(token.map_or(Answer::Absent, |_| Answer::Served))
        }
        Capability::Gate => match client.gate() {
            None => Ok(Answer::Absent),
            Some(gate) => gate.read(name).await.map(|_| Answer::Served),
        },
        Capability::Watch | Capability::Inspect | Capability::ForceRelease | Capability::List => {
            let Some(observe) = client.observe() else {
                return Ok(Answer::Absent);
            };
            match capability {
                Capability::Watch => {
                    let mut changes = observe.watch(name).await?;
                    match changes.next().await {
                        Some(first) => first.map(|_| Answer::Served),
                        None => Ok(Answer::Absent),
                    }
                }
                Capability::Inspect => observe.inspect(name).await.map(|_| Answer::Served),
                Capability::List => observe.list(name.as_bytes()).await.map(|_| Answer::Served),
                _ => observe.force_release(name).await.map(|_| Answer::Served),
            }
        }
        Capability::Downgrade | Capability::Upgrade => {
            let down = capability == Capability::Downgrade;
            let mode = if down { Mode::Exclusive } else { Mode::READER };
            let held = client.acquire(name, &ask.mode(mode)).await?;
            let answer = match held.convert() {
                None => Ok(Answer::Absent),
                Some(convert) if down => convert.downgrade().await.map(|()| Answer::Served),
                // There is no other holder.
                Some(convert) => convert.try_upgrade().await.map(|upgraded| match upgraded {
                    Upgraded::Done => Answer::Served,
                    other => Answer::Wrong(format!("the only holder's upgrade answers {other:?}")),
                }),
            };
            held.release().await?;
            answer
        }
        Capability::Raise => match client.backend() {
            None => Ok(Answer::NotReachable),
            Some(backend) => raise(cx, &**backend, name, &ask).await,
        },
        _ => Ok(Answer::NotReachable),
    }
}

/// Raises the token of a held lease, as a quorum does, by a request that the client does not know.
async fn raise(cx: &Cx, backend: &dyn spi::Lock, name: &LockName, ask: &Ask) -> Result<Answer> {
    let Some(fencing) = backend.fencing() else {
        return Ok(Answer::Absent);
    };
    let key = key_of_nobody(cx, name);
    let grant = match backend.attempt(&spi::Acquire::new(key.clone(), ask.ttl)).await? {
        Attempt::Granted(grant) => grant,
        other => return Ok(Answer::Wrong(format!("a free name's attempt answers {other:?}"))),
    };
    let to = Token::new(grant.token.map_or(0, Token::get) + 7);
    let answer = match to {
        None => Ok(Answer::Absent),
        Some(to) => fencing.raise(&key, to).await.map(|raised| match raised {
            Raised::Raised(now) if now >= to => Answer::Served,
            other => Answer::Wrong(format!("raising the token to {to:?} answers {other:?}")),
        }),
    };
    backend.release(&key, Release::Now).await?;
    answer
}

/// The key of a request that belongs to no client.
pub(super) fn key_of_nobody(cx: &Cx, name: &LockName) -> LeaseKey {
    let mut rng = cx.rng();
    let client = u128::from(rng.bits()) << 64 | u128::from(rng.bits());
    LeaseKey::new(name.clone(), RequestId::new(client, 1))
}

async fn hold(client: &dyn Subject, name: &LockName, ask: &Ask) -> Result<Answer> {
    client.acquire(name, ask).await?.release().await?;
    Ok(Answer::Served)
}
