//! `dlock status`, `dlock ls`, `dlock watch` and `dlock release`.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use dlock::{Change, Holder, Inspection, Mode};
use futures::StreamExt as _;
use serde_json::{Value, json};

use crate::args::{Ls, Release, Status, Watch};
use crate::failure::{Failure, code};
use crate::run::ended;
use crate::store::Store;

pub(crate) async fn status(store: &Store, status: &Status) -> Result<u8, Failure> {
    let client = store.connect(None).await?;
    let now = client.inspect(&*status.name).await?;
    say_state(&status.name, &now, status.json)?;
    ended(&client, Ok(0)).await
}

fn say_state(name: &str, now: &Inspection, as_json: bool) -> Result<(), Failure> {
    if !as_json {
        return say(&shown(name, now));
    }
    let holders: Vec<_> = now.holders.iter().map(of_holder).collect();
    say(&json!({ "name": name, "waiting": now.waiting, "holders": holders }).to_string())
}

pub(crate) async fn ls(store: &Store, ls: &Ls) -> Result<u8, Failure> {
    let client = store.connect(None).await?;
    let mut names = client.list(&ls.prefix)?;
    while let Some(name) = names.next().await.transpose()? {
        // In JSON, text is not escaped, so that it is as it was given and as `status` has it.
        let raw = std::str::from_utf8(name.as_bytes()).ok().filter(|_| ls.json);
        let shown = raw.map_or_else(|| name.to_string(), str::to_owned);
        match (ls.long, ls.json) {
            (true, _) => say_state(&shown, &client.inspect(name).await?, ls.json)?,
            (_, true) => say(&json!({ "name": shown }).to_string())?,
            _ => say(&shown)?,
        }
    }
    ended(&client, Ok(0)).await
}

pub(crate) async fn watch(store: &Store, watch: &Watch) -> Result<u8, Failure> {
    let client = store.connect(None).await?;
    let mut changes = client.watch(&*watch.name).await?;
    while let Some(change) = changes.next().await {
        let change = change?;
        match watch.json {
            true => say(&of_change(&change).to_string())?,
            false => {
                let at = humantime::format_rfc3339_millis(std::time::SystemTime::now());
                say(&format!("{at}  {}", shown_change(&watch.name, &change)))?;
            }
        }
    }
    ended(&client, Ok(0)).await
}

pub(crate) async fn release(store: &Store, release: &Release) -> Result<u8, Failure> {
    let client = store.connect(None).await?;
    if !release.yes {
        if !std::io::stdin().is_terminal() {
            return Err(Failure::usage(
                "cannot ask for confirmation without a terminal: pass --yes to release the lock",
            ));
        }
        say(&shown(&release.name, &client.inspect(&*release.name).await?))?;
        print!("The holder may be at work, and the next waiter gets the lock at once. Release it? [y/N] ");
        let _ = std::io::stdout().flush();
        let mut answer = String::new();
        let read = std::io::stdin().read_line(&mut answer);
        if read.is_err() || !matches!(answer.trim(), "y" | "Y" | "yes") {
            return Err(Failure::new(code::NOT_ACQUIRED, "nothing was released"));
        }
    }
    let holds = client.force_release(&*release.name).await?;
    say(&match holds {
        0 => format!("nothing to end: nobody holds {}", release.name),
        1 => "1 hold ended".to_owned(),
        n => format!("{n} holds ended"),
    })?;
    ended(&client, Ok(0)).await
}

/// If the reader is gone, as after `head`, the program ends without a message.
pub(crate) fn say(line: &str) -> Result<(), Failure> {
    match writeln!(std::io::stdout(), "{line}") {
        Ok(()) => Ok(()),
        Err(_) => std::process::exit(0),
    }
}

fn shown(name: &str, now: &Inspection) -> String {
    let waiting = match now.waiting {
        0 => String::new(),
        n => format!(", {n} waiting"),
    };
    let holders = match now.holders.len() {
        0 => "free".to_owned(),
        1 => "held".to_owned(),
        n => format!("held {n} times"),
    };
    let lines = now
        .holders
        .iter()
        .map(|holder| format!("\n  {}", shown_holder(holder)));
    format!("{name}: {holders}{waiting}{}", lines.collect::<String>())
}

fn shown_holder(holder: &Holder) -> String {
    let token = holder.token.map_or(String::new(), |t| format!(", token {t}"));
    let owner = holder
        .owner
        .as_ref()
        .map_or(String::new(), |o| format!(", by {o:?}"));
    let place = holder
        .whereabouts
        .as_ref()
        .map_or(String::new(), |w| format!(", at {w}"));
    let left = humantime::format_duration(Duration::from_secs(holder.expires_in.as_secs()));
    format!(
        "{}{token}{owner}{place}, for {left} unless renewed",
        mode(holder.mode)
    )
}

fn mode(mode: Mode) -> String {
    match mode {
        Mode::Exclusive => "exclusive".to_owned(),
        Mode::Shared { limit: Some(n) } => format!("one of {n}"),
        _ => "shared".to_owned(),
    }
}

fn of_holder(holder: &Holder) -> Value {
    json!({
        "id": holder.id.to_string(),
        "mode": mode(holder.mode),
        "token": holder.token.map(dlock::Token::get),
        "expires_in_ms": holder.expires_in.as_millis() as u64,
        "owner": holder.owner.as_deref(),
        "whereabouts": holder.whereabouts.as_deref(),
    })
}

fn of_change(change: &Change) -> Value {
    match change {
        Change::Snapshot { now, skipped } => {
            let holders: Vec<_> = now.holders.iter().map(of_holder).collect();
            json!({ "event": "snapshot", "skipped": skipped, "waiting": now.waiting, "holders": holders })
        }
        Change::Granted(holder) => {
            json!({ "event": "granted", "id": holder.id.to_string(), "holder": of_holder(holder) })
        }
        Change::Released { id } => json!({ "event": "released", "id": id.to_string() }),
        Change::Expired { id } => json!({ "event": "expired", "id": id.to_string() }),
        Change::Forced { id } => json!({ "event": "forced", "id": id.to_string() }),
        _ => json!({ "event": "other" }),
    }
}

fn shown_change(name: &str, change: &Change) -> String {
    match change {
        Change::Snapshot { now, skipped: false } => shown(name, now),
        Change::Snapshot { now, .. } => format!("some changes may be missing; now {}", shown(name, now)),
        Change::Granted(holder) => format!("granted   {} {}", holder.id, shown_holder(holder)),
        Change::Released { id } => format!("released  {id}"),
        Change::Expired { id } => format!("expired   {id}"),
        Change::Forced { id } => format!("forced    {id}"),
        _ => "changed".to_owned(),
    }
}
