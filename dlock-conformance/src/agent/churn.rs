//! Work that a child does on its own, so that a signal can hit it at any point.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::{ErrorKind, LockName, Timestamp, Token};
use serde::{Deserialize, Serialize};

use crate::cx::Cx;
use crate::rng::Rng;
use crate::subject::{Ask, Held, Subject};

/// Takes a name, writes to the resource with its token, holds it for a while, releases it, and so on until it
/// is cancelled.
///
/// It writes without checking its guard. Fencing exists for this kind of holder.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Churn {
    name: Vec<u8>,
    resource: Vec<u8>,
    ask: Ask,
    hold: Duration,
    seed: u64,
}

/// What a child did, and when: from `began` to `ended` on its own clock, which is the machine's where
/// [`Timestamp`] says so.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Step {
    /// Nanoseconds of [`Timestamp`].
    pub began: u64,
    /// Nanoseconds of [`Timestamp`].
    pub ended: u64,
    /// The number of the grant. Each grant has its own.
    pub grant: u64,
    /// What it saw.
    pub seen: Seen,
}

/// What a child saw in one step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Seen {
    /// It was granted with that token, and believes until `deadline`.
    Granted {
        /// The fencing token, or 0.
        token: u64,
        /// Nanoseconds of [`Timestamp`].
        deadline: u64,
    },
    /// Its guard says that it is valid, until `deadline` unless it is renewed.
    Valid {
        /// Nanoseconds of [`Timestamp`].
        deadline: u64,
    },
    /// Its guard says that it is not valid.
    Invalid,
    /// The gate admitted its write.
    Admitted,
    /// The gate refused its write.
    Refused,
    /// It is about to release, and no longer believes that it holds.
    Releasing,
    /// It has released, or learned that the lock was lost before.
    Released,
    /// An operation failed.
    Failed(String),
}

impl Churn {
    /// Over that name and that resource; each hold lasts up to `hold`.
    pub fn new(name: &LockName, resource: &LockName, ask: &Ask, hold: Duration, seed: u64) -> Self {
        Self {
            name: name.as_bytes().to_vec(),
            resource: resource.as_bytes().to_vec(),
            ask: ask.clone(),
            hold,
            seed,
        }
    }

    /// Works until it is dropped.
    pub(super) async fn run(self, cx: Cx, client: Arc<dyn Subject>, tell: impl Fn(Step)) {
        let (Ok(name), Ok(resource)) = (LockName::new(&self.name), LockName::new(&self.resource)) else {
            return;
        };
        let ask = &self.ask;
        let mut rng = Rng::new(self.seed);
        for grant in 0.. {
            let began = cx.now();
            let say = |began: Timestamp, seen| {
                tell(Step {
                    began: began.as_nanos(),
                    ended: cx.now().as_nanos(),
                    grant,
                    seen,
                });
            };
            let held = match client.acquire(&name, ask).await {
                Ok(held) => held,
                Err(e) => {
                    say(began, Seen::Failed(format!("acquire: {e:?}")));
                    cx.sleep(Duration::from_millis(5)).await;
                    continue;
                }
            };
            let token = held.token().map_or(0, Token::get);
            let deadline = held.deadline().as_nanos();
            say(began, Seen::Granted { token, deadline });
            let writes = 1 + rng.below(3);
            for _ in 0..writes {
                self.write(&cx, &*client, &resource, &*held, &say).await;
                cx.sleep(rng.duration(Duration::ZERO, self.hold / 3)).await;
            }
            let began = cx.now();
            say(began, Seen::Releasing);
            let released = held.release().await;
            let failed = released.err().filter(|e| e.kind() != ErrorKind::Lost);
            let seen = failed.map_or(Seen::Released, |e| Seen::Failed(format!("release: {e:?}")));
            say(began, seen);
            cx.sleep(rng.duration(Duration::ZERO, self.hold)).await;
        }
    }

    async fn write(
        &self,
        cx: &Cx,
        client: &dyn Subject,
        resource: &LockName,
        held: &dyn Held,
        say: &impl Fn(Timestamp, Seen),
    ) {
        if let (Some(gate), Some(token)) = (client.gate(), held.token()) {
            let began = cx.now();
            match gate.write(resource, token, &token.get().to_be_bytes()).await {
                Ok(answer) if answer.is_admitted() => say(began, Seen::Admitted),
                Ok(_) => say(began, Seen::Refused),
                Err(e) => say(began, Seen::Failed(format!("write: {e:?}"))),
            }
        }
        let began = cx.now();
        let deadline = held.deadline().as_nanos();
        // Looked at after the deadline was read: a valid guard is valid until then at least.
        say(
            began,
            if held.is_valid() {
                Seen::Valid { deadline }
            } else {
                Seen::Invalid
            },
        );
    }
}
