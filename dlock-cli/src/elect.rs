//! `dlock elect`: runs a command on the host that leads.

use std::time::Duration;

use dlock::ErrorKind;

use crate::args::Elect;
use crate::failure::Failure;
use crate::job::{Job, Outcome};
use crate::run::ended;
use crate::signals::Signals;
use crate::store::Store;

/// The pause before an ended command is restarted, before an unavailable store is asked again, and before a
/// leader that lost the leadership campaigns again.
const PAUSE: Duration = Duration::from_secs(1);

pub(crate) async fn main(store: &Store, elect: Elect) -> Result<u8, Failure> {
    let mut job = Job::new(&elect.hold, elect.command, store.shown())?;
    let mut signals = Signals::new()?;
    let client = store.connect(None).await?;
    let value = elect.value.or(elect.hold.label.clone());
    let election = client
        .election(&*elect.name)?
        .options(elect.hold.options(&client, value))?;
    loop {
        let leadership = match signals.unless_ended(election.campaign()).await {
            Ok(Ok(leadership)) => leadership,
            // The store could be reached at the start: a candidate should not end because the store
            // restarts.
            Ok(Err(e)) if e.is_retryable() || e.kind() == ErrorKind::Lost => {
                eprintln!("dlock: {}; trying again", Failure::from(e));
                match signals.unless_ended(tokio::time::sleep(PAUSE)).await {
                    Ok(()) => continue,
                    Err(signal) => return ended(&client, Ok(signal)).await,
                }
            }
            Ok(Err(e)) => return ended(&client, Err(e.into())).await,
            Err(signal) => return ended(&client, Ok(signal)).await,
        };
        eprintln!("dlock: this host leads `{}`", elect.name);
        let outcome = loop {
            match job.run(&leadership.held(), &mut signals).await {
                Ok(Outcome::Ended(_)) if elect.restart && !job.was_told_to_end() => {
                    if let Err(signal) = signals.unless_ended(tokio::time::sleep(PAUSE)).await {
                        break Ok(Outcome::Ended(signal));
                    }
                }
                outcome => break outcome,
            }
        };
        let done = match outcome {
            Ok(Outcome::Lost(why)) => {
                let name = &elect.name;
                eprintln!("dlock: the leadership of `{name}` was lost, and the command was ended: {why}");
                match signals.unless_ended(tokio::time::sleep(PAUSE)).await {
                    Ok(()) => continue,
                    Err(signal) => return ended(&client, Ok(signal)).await,
                }
            }
            Ok(Outcome::Ended(code)) => Ok(code),
            Err(e) => Err(e),
        };
        let _ = leadership.resign().await;
        return ended(&client, done).await;
    }
}
