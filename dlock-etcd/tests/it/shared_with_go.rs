//! The same locks, and the same elections, taken by `etcdctl`: that is etcd's own client in Go.
//! `DLOCK_ETCD_ALTERNATIONS=1000` has them alternate more often than 25 times.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use dlock_core::Change;
use dlock_core::spi::{Lock as _, Release};
use dlock_testkit::{EtcdServer, Folder};
use futures::StreamExt as _;

use crate::{LONG, X, client, client_of, granted, hands, key, line, open, queued, start, turn, until, waits};

fn alternations() -> usize {
    let more = std::env::var("DLOCK_ETCD_ALTERNATIONS").ok();
    more.map_or(25, |n| n.parse().expect("DLOCK_ETCD_ALTERNATIONS is a number"))
}

/// `etcdctl` with those words, on its own.
fn go(server: &EtcdServer, words: &[&str]) -> Command {
    let mut command = Command::new("etcdctl");
    command.env("ETCDCTL_API", "3").stdin(Stdio::null());
    command.arg(format!("--endpoints={}", server.address()));
    command.args(words);
    command
}

/// A process that is ended with this.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn note(file: &Path, what: &str) {
    let mut file = File::options().create(true).append(true).open(file).unwrap();
    file.write_all(format!("{what}\n").as_bytes()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn no_two_have_it_when_both_languages_want_it() {
    let times = alternations();
    let server = start().await;
    let folder = Folder::new("shared-with-go").unwrap();
    let notes = folder.file("notes");
    let commands = tokio::task::spawn_blocking({
        let (server, notes) = (server.clone(), notes.display().to_string());
        move || {
            let script = format!("echo begin go >> '{notes}' && sleep 0.005 && echo end go >> '{notes}'");
            for _ in 0..times {
                let words = ["lock", "dlock/x", "--", "sh", "-c", &script];
                let done = go(&server, &words).output().unwrap();
                assert!(done.status.success(), "{done:?}");
            }
        }
    });
    let client = client(&server).await;
    let lock = client.lock("x").unwrap();
    // In line again and again, as long as the other is.
    while !commands.is_finished() {
        let guard = lock.acquire().await.unwrap();
        note(&notes, "begin rust");
        tokio::time::sleep(Duration::from_millis(5)).await;
        note(&notes, "end rust");
        guard.release().await.unwrap();
    }
    commands.await.unwrap();
    let text = std::fs::read_to_string(&notes).unwrap();
    let all: Vec<_> = text.lines().collect();
    for both in all.chunks(2) {
        assert!(
            both == ["begin go", "end go"] || both == ["begin rust", "end rust"],
            "{both:?} in {text}"
        );
    }
    assert_eq!(all.iter().filter(|line| **line == "begin go").count(), times);
    let changes = all.windows(2).filter(|two| *two == ["end go", "begin rust"]);
    assert!(changes.count() > times / 2, "they hardly met: {text}");
}

/// First come, first served, for all clients.
#[tokio::test]
async fn both_languages_stand_in_one_line() {
    let server = start().await;
    let lock = open(&server).await;
    let (first, last) = (key("x", 1, 1), key("x", 1, 2));
    granted(&lock, &queued(&first, X)).await;
    let mut command = go(&server, &["lock", "dlock/x"]);
    let mut waiting = Ended(command.stdout(Stdio::piped()).spawn().unwrap());
    until("it waits", LONG, async || line(&server).await.len() == 2).await;
    let mut wait = waits(&lock, &queued(&last, X)).await;
    let mut changes = lock.watch().unwrap().watch(&first.name).await.unwrap();
    changes.next().await.unwrap().unwrap();
    lock.release(&first, Release::Now).await.unwrap();
    // It says its key when it has the lock.
    let mut said = BufReader::new(waiting.0.stdout.take().unwrap()).lines();
    let held = tokio::task::spawn_blocking(move || said.next().unwrap().unwrap())
        .await
        .unwrap();
    let there = line(&server).await;
    assert_eq!(held, there[0].key_str().unwrap());
    let Some(Ok(Change::Released { .. })) = changes.next().await else {
        panic!("a release");
    };
    let Some(Ok(Change::Granted(seen))) = changes.next().await else {
        panic!("a grant");
    };
    assert_eq!(
        seen.token.unwrap().get(),
        there[0].create_revision().unsigned_abs()
    );
    // Killed, it keeps the lock until its lease ends: an operator is quicker.
    drop(waiting);
    crate::revoke(&server, there[0].lease()).await;
    let grant = turn(&mut wait).await;
    assert!(grant.token > seen.token);
    let ended = changes.next().await.unwrap().unwrap();
    assert_eq!(ended, Change::Expired { id: seen.id });
}

#[tokio::test]
async fn the_leader_is_the_one_that_etcdctl_names() {
    let server = start().await;
    let client = client_of(open(&server).await);
    let election = client.election("boss").unwrap().value("10.0.0.7:80").unwrap();
    let leadership = election.campaign().await.unwrap();
    assert_eq!(listened(&server).await, "10.0.0.7:80");
    // And the other way.
    leadership.resign().await.unwrap();
    let mut command = go(&server, &["elect", "dlock/boss", "from Go"]);
    let leads = Ended(command.stdout(Stdio::null()).spawn().unwrap());
    until("it leads", LONG, async || {
        let leader = election.leader().await.unwrap();
        leader.is_some_and(|leader| leader.owner.as_deref() == Some("from Go"))
    })
    .await;
    drop(leads);
}

/// The value of the leader, as `etcdctl` tells it.
async fn listened(server: &Arc<EtcdServer>) -> String {
    hands(server, |s| {
        let mut command = go(s, &["elect", "--listen", "dlock/boss"]);
        let mut listens = Ended(command.stdout(Stdio::piped()).spawn()?);
        // The key, and then its value.
        let said = BufReader::new(listens.0.stdout.take().unwrap());
        said.lines().nth(1).unwrap()
    })
    .await
}
