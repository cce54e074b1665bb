//! When a lease ends, seen by somebody who waits for it, and what an operation on a hold that is over must
//! answer.

use std::fmt;

use dlock_core::{Error, Timestamp};

use super::prelude::*;

/// Tries until it is granted, and breaks the rule if that is before `earliest` or not by `latest`.
pub(super) async fn granted_within(
    cx: &Cx,
    client: &dyn Subject,
    name: &LockName,
    ask: &Ask,
    (earliest, latest): (Timestamp, Timestamp),
    what: impl fmt::Display + Send,
) -> Verdict<Box<dyn Held>> {
    loop {
        let asked = cx.now();
        let granted = client.try_acquire(name, ask).await;
        let granted = granted.seen(format_args!("{what}: another tries"))?;
        let now = cx.now();
        if let Some(held) = granted {
            ensure!(
                now >= earliest,
                "{what}: granted to another {:?} before its end",
                now.until(earliest)
            );
            return Ok(held);
        }
        if now < earliest {
            cx.evidence("refusals");
        }
        ensure!(
            asked < latest,
            "{what}: still refused to others {:?} after the latest time at which it may have ended",
            latest.until(asked)
        );
        cx.sleep(ms(4)).await;
    }
}

/// Breaks the rule unless this is the answer `Lost`.
pub(super) fn refused_as_lost<T>(answer: Result<T, Error>, doing: impl fmt::Display) -> Verdict {
    match answer {
        Err(e) if e.kind() == ErrorKind::Lost => Ok(()),
        Err(e) => fail!("{doing}: {e} ({:?}), and not `Lost`", e.kind()),
        Ok(_) => fail!("{doing}: answered Ok, and not `Lost`"),
    }
}
