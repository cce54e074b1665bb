//! `dlock run`: runs a command under a lock.

use dlock::{Client, Guard, Held, LockOptions, Result};

use crate::args::Run;
use crate::failure::{Failure, code};
use crate::job::{Job, Outcome};
use crate::signals::Signals;
use crate::store::Store;

/// The held lock or permit.
enum Holding {
    Lock(Guard),
    Permit(dlock::Permit),
}

impl Holding {
    fn held(&self) -> Held {
        match self {
            Self::Lock(guard) => guard.held(),
            Self::Permit(permit) => permit.held(),
        }
    }

    async fn release(self) -> Result<()> {
        match self {
            Self::Lock(guard) => guard.release().await,
            Self::Permit(permit) => permit.release().await,
        }
    }
}

pub(crate) async fn main(store: &Store, run: Run) -> Result<u8, Failure> {
    let mut job = Job::new(&run.hold, run.command.clone(), store.shown())?;
    let mut signals = Signals::new()?;
    let client = store.connect(None).await?;
    let acquired = signals.unless_ended(acquire(&client, &run)).await;
    let holding = match acquired {
        Ok(Ok(Some(holding))) => holding,
        Ok(Ok(None)) => {
            let text = format!("somebody else holds the lock `{}`", run.name);
            return ended(&client, Err(Failure::new(code::NOT_ACQUIRED, text))).await;
        }
        Ok(Err(e)) => return ended(&client, Err(e.into())).await,
        Err(signal) => return ended(&client, Ok(signal)).await,
    };
    let outcome = job.run(&holding.held(), &mut signals).await;
    let done = match outcome {
        Ok(Outcome::Ended(code)) => match holding.release().await {
            Err(e) if e.kind() != dlock::ErrorKind::Lost => {
                eprintln!("dlock: the command ended, but the lock was not released: {e}");
                Ok(code)
            }
            _ => Ok(code),
        },
        Ok(Outcome::Lost(why)) => {
            let text = format!(
                "the lock `{}` was lost, and the command was ended: {why}",
                run.name
            );
            Err(Failure::new(code::LOST, text))
        }
        Err(e) => {
            let _ = holding.release().await;
            Err(e)
        }
    };
    ended(&client, done).await
}

async fn acquire(client: &Client, run: &Run) -> Result<Option<Holding>> {
    let options = run
        .hold
        .options(client, run.hold.label.clone())
        .wait_limit(run.wait)
        .min_hold(run.at_least);
    if let Some(n) = run.permits {
        let permits = client.semaphore(&*run.name, n)?.options(options)?;
        let permit = if run.once {
            permits.try_acquire().await?
        } else {
            Some(permits.acquire().await?)
        };
        return Ok(permit.map(Holding::Permit));
    }
    let lock = match run.shared {
        true => client.rwlock(&*run.name)?.read().clone().options(options)?,
        false => client.lock(&*run.name)?.options(options)?,
    };
    let guard = if run.once {
        lock.try_acquire().await?
    } else {
        Some(lock.acquire().await?)
    };
    Ok(guard.map(Holding::Lock))
}

impl crate::args::Hold {
    /// The options of the lock, with a label if the store keeps labels.
    pub(crate) fn options(&self, client: &Client, label: Option<String>) -> LockOptions {
        let options = LockOptions::new().ttl(self.ttl);
        let most = client.capabilities().max_owner_len;
        match label {
            Some(label) => options.owner_label(label),
            None if most == 0 => options,
            None => {
                let host = nix::unistd::gethostname().unwrap_or_default();
                let mut own = format!("{} {}", host.to_string_lossy(), std::process::id());
                while own.len() > most {
                    own.pop();
                }
                options.owner_label(own)
            }
        }
    }
}

/// Closes the client, which waits for releases in progress, before this program ends.
pub(crate) async fn ended(client: &Client, done: Result<u8, Failure>) -> Result<u8, Failure> {
    let _ = client.close().await;
    done
}
