//! Using each capability once, for the rules that compare claims with deeds.

use dlock_core::{Capability, LockName, Mode, Result};
use futures::StreamExt;

use crate::cx::Cx;
use crate::subject::{Ask, Subject};

/// What came of it, if it was no error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It did what was asked.
    Served,
    /// The subject has no such part.
    Absent,
    /// A subject's user cannot ask for this by itself.
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
            let least = std::time::Duration::from_millis(1);
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
        Capability::Watch | Capability::Inspect | Capability::ForceRelease => {
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
                Some(convert) => convert.try_upgrade().await.map(|_| Answer::Served),
            };
            held.release().await?;
            answer
        }
        _ => Ok(Answer::NotReachable),
    }
}

async fn hold(client: &dyn Subject, name: &LockName, ask: &Ask) -> Result<Answer> {
    client.acquire(name, ask).await?.release().await?;
    Ok(Answer::Served)
}
