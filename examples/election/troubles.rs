//! The process that starts the others, makes trouble for the leader, and looks whether everything promised
//! happened.

use std::collections::BTreeMap;
use std::error::Error;
use std::time::{Duration, Instant};

use dlock::Holder;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use rustix::process::Signal;

use crate::candidate::{LEASE, SCHEDULER};
use crate::link::Link;
use crate::process::{Process, expect};
use crate::servers::Servers;

/// How much later than promised is still on time, on a busy machine.
const SLACK: Duration = Duration::from_secs(3);

/// One process of the service, and what it has written.
struct Candidate {
    process: Process,
    link: Link,
}

/// What was written: each number, and by which token.
type Written = BTreeMap<u64, u64>;

pub(crate) fn run() -> Result<(), Box<dyn Error>> {
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let servers = Servers::start(1)?;
    let folder = tempfile::tempdir()?;
    let url = servers.urls().remove(0);
    let socket = url.trim_start_matches("redis+unix://");
    let mut started = 0;
    let mut start = || -> Result<Candidate, Box<dyn Error>> {
        started += 1;
        let link = Link::new(folder.path().join(format!("{started}.sock")), socket.as_ref())?;
        let process = Process::start("candidate", link.url())?;
        Ok(Candidate { process, link })
    };
    let mut candidates = vec![start()?, start()?, start()?];
    let mut written = Written::new();
    tokio.block_on(async {
        let client = dlock::connect(&url).await?;
        let mut leaders = client.election(SCHEDULER)?.observe().await?;
        let mut leader = next(&mut leaders, Duration::from_secs(20)).await?;

        let (n, token) = seen_at_work(&candidates, &leader, &mut written)?;
        println!("  ... SIGKILL");
        candidates[n].process.signal(Signal::KILL)?;
        leader = next_after(&mut leaders, token).await?;
        // What it had said before.
        while let Ok(line) = candidates[n].process.line() {
            note(&line, &mut written)?;
        }
        candidates[n] = start()?;

        let (n, token) = seen_at_work(&candidates, &leader, &mut written)?;
        println!("  ... SIGSTOP");
        candidates[n].process.signal(Signal::STOP)?;
        leader = next_after(&mut leaders, token).await?;
        seen_at_work(&candidates, &leader, &mut written)?;
        candidates[n].process.signal(Signal::CONT)?;
        over(&candidates[n], token, &mut written)?;
        println!("  token {token} goes on, and its work is over");

        let (n, token) = seen_at_work(&candidates, &leader, &mut written)?;
        println!("  ... cut off from the store");
        candidates[n].link.cut(true);
        over(&candidates[n], token, &mut written)?;
        println!("  token {token} has ended its work");
        leader = next_after(&mut leaders, token).await?;
        seen_at_work(&candidates, &leader, &mut written)?;
        candidates[n].link.cut(false);
        Ok::<(), Box<dyn Error>>(client.close().await?)
    })?;
    for candidate in &mut candidates {
        candidate.process.go()?;
    }
    for candidate in &mut candidates {
        while let Ok(line) = candidate.process.line() {
            note(&line, &mut written)?;
        }
        candidate.process.finish()?;
    }
    judged(&written)
}

/// The leader that is told next.
async fn next(
    leaders: &mut BoxStream<'static, dlock::Result<Holder>>,
    limit: Duration,
) -> Result<Holder, Box<dyn Error>> {
    let leader = tokio::time::timeout(limit, leaders.next()).await;
    let leader = leader.map_err(|_| format!("nobody else leads after {limit:?}"))?;
    Ok(leader.ok_or("the stream of leaders has ended")??)
}

/// The same, after trouble for the one with that token: as soon as its lease is over.
async fn next_after(
    leaders: &mut BoxStream<'static, dlock::Result<Holder>>,
    token: u64,
) -> Result<Holder, Box<dyn Error>> {
    let began = Instant::now();
    let leader = next(leaders, LEASE + SLACK).await?;
    let newer = leader.token.is_some_and(|newer| newer.get() > token);
    expect(newer, "the token of the next leader is not larger")?;
    println!("  another one leads {:.2} s later", began.elapsed().as_secs_f64());
    Ok(leader)
}

/// Waits until the leader has written; says which of them it is, and with which token.
fn seen_at_work(
    candidates: &[Candidate],
    leader: &Holder,
    written: &mut Written,
) -> Result<(usize, u64), Box<dyn Error>> {
    let value = leader.owner.as_deref().ok_or("the leader has no value")?;
    let token = leader.token.ok_or("the leader has no token")?.get();
    let n = candidates
        .iter()
        .position(|c| c.process.pid().to_string() == value);
    let n = n.ok_or("a stranger leads")?;
    // It has been here before if its token has written.
    let mut more = 3;
    while more > 0 {
        let (by, wrote) = note(&candidates[n].process.line()?, written)?;
        more -= u32::from(by == token && wrote);
    }
    println!("process {value} leads with token {token}, and writes");
    Ok((n, token))
}

/// Waits until it has said that its work is over.
fn over(candidate: &Candidate, token: u64, written: &mut Written) -> Result<(), Box<dyn Error>> {
    while note(&candidate.process.line()?, written)? != (token, false) {}
    Ok(())
}

/// Takes apart `token 7 wrote 3` and `token 7 over`: which token, and whether it wrote.
fn note(line: &str, written: &mut Written) -> Result<(u64, bool), Box<dyn Error>> {
    let words: Vec<&str> = line.split(' ').collect();
    match words[..] {
        ["token", token, "over"] => Ok((token.parse()?, false)),
        ["token", token, "wrote", number] => {
            let (token, number) = (token.parse()?, number.parse()?);
            match written.insert(number, token) {
                None => Ok((token, true)),
                Some(other) => Err(format!("{number} was written by token {other} and by {token}").into()),
            }
        }
        _ => Err(format!("not understood: {line}").into()),
    }
}

/// Each number was written once. Of each of the three troubles one may be missing, written and not told.
fn judged(written: &Written) -> Result<(), Box<dyn Error>> {
    let last = written.last_key_value().map_or(0, |(number, _)| *number);
    let missing = last - written.len() as u64;
    expect(
        missing <= 3,
        &format!("of {last} numbers {missing} were written by nobody"),
    )?;
    let tokens: Vec<u64> = written.values().copied().collect();
    expect(tokens.is_sorted(), "an older leader wrote after a newer one")?;
    println!("{last} numbers, each written once, by leaders in the order of their tokens");
    Ok(())
}
