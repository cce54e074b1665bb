//! Leases and queue entries extended, five hundred in a statement.
//!
//! A statement does not wait for a name that somebody else changes just then, or one busy name would keep the
//! leases of all others waiting. Those few are sent again, in a statement that does wait.

use std::sync::Arc;

use dlock_core::spi::{RenewItem, RenewKind, RenewOutcome, Renewal};
use dlock_core::{Result, Timestamp};
use futures::future::join_all;

use super::Db;
use super::answer::Answer;
use super::call::Value;
use crate::lease::call::get;
use crate::lease::connection::again;
use crate::lease::dialect::Outcomes;
use crate::lease::failure::foreign;
use crate::lease::keys::{id_bytes, micros};
use crate::lease::renew::BATCH;
use crate::requests::round_up;

type Item<'a> = (usize, &'a RenewItem);

pub(super) async fn renew(db: &Arc<Db>, items: Vec<Item<'_>>) -> Outcomes {
    let batches = items.chunks(BATCH).map(|batch| async move {
        let (mut outcomes, busy) = try_renew(db, batch, false).await;
        if !busy.is_empty() {
            let (rest, busy) = try_renew(db, &busy, true).await;
            outcomes.extend(rest);
            // The server waited for them: it does not say so.
            outcomes.extend(busy.iter().map(|(n, _)| (*n, Err(foreign("an item left out")))));
        }
        outcomes
    });
    join_all(batches).await.into_iter().flatten().collect()
}

/// The outcomes; and the items that another statement had locked.
async fn try_renew<'a>(db: &Arc<Db>, batch: &[Item<'a>], waits: bool) -> (Outcomes, Vec<Item<'a>>) {
    let (sent, answers) = match ask(db, batch, waits).await {
        Ok(answered) => answered,
        Err(e) => {
            let failed = batch.iter().map(|(n, _)| (*n, Err(e.clone())));
            return (failed.collect(), Vec::new());
        }
    };
    let (mut outcomes, mut busy) = (Outcomes::with_capacity(batch.len()), Vec::new());
    for ((n, item), answer) in batch.iter().zip(answers) {
        match answer {
            Some(answer) if answer.word == "B" => busy.push((*n, *item)),
            Some(answer) => outcomes.push((*n, outcome(db, item, &answer, sent))),
            None => outcomes.push((*n, Err(foreign("too few answers")))),
        }
    }
    (outcomes, busy)
}

async fn ask(db: &Arc<Db>, batch: &[Item<'_>], waits: bool) -> Result<(Timestamp, Vec<Option<Answer>>)> {
    let of = || batch.iter().map(|(_, item)| item);
    let values = [
        Value::ManyBytes(of().map(|i| i.key.name.as_bytes().to_vec()).collect()),
        Value::ManyBytes(of().map(|i| id_bytes(i.key.id).to_vec()).collect()),
        Value::Truths(of().map(|i| i.kind == RenewKind::Queued).collect()),
        Value::Longs(of().map(|i| micros(round_up(i.ttl)).max(1_000)).collect()),
        // A waiter without a channel polls now: see `wait`.
        Value::Text(db.channel.as_deref().filter(|_| db.pushes.listens())),
        Value::Truth(waits),
    ];
    let (sent, rows) = again(|| db.ask(&db.sql.renew, &values)).await.0?;
    let mut answers: Vec<Option<Answer>> = batch.iter().map(|_| None).collect();
    for row in &rows.rows {
        let number: i32 = get(row, 6)?;
        // The first is number one.
        let number = usize::try_from(number).ok().and_then(|n| n.checked_sub(1));
        let slot = number.and_then(|n| answers.get_mut(n));
        *slot.ok_or_else(|| foreign("an item that was not asked for"))? = Some(Answer::read(row)?);
    }
    Ok((sent, answers))
}

fn outcome(db: &Db, item: &RenewItem, answer: &Answer, sent: Timestamp) -> Result<RenewOutcome> {
    db.pushes.anchor(sent, answer.at);
    Ok(match answer.word.as_str() {
        "L" => RenewOutcome::Renewed(Renewal::new(sent, answer.life.unwrap_or_default())),
        "G" => RenewOutcome::Granted(answer.grant(&item.key, sent)?),
        "Q" => RenewOutcome::Queued {
            recheck_in: answer.life,
            ahead: answer.ahead,
        },
        _ => RenewOutcome::Gone,
    })
}
