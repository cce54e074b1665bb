//! The programs end as they should when they are told to.
#![cfg(unix)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dlock_recipes::leader::NAME;
use futures::StreamExt;
use rustix::process::{Pid, Signal, kill_process};

use crate::{PATIENCE, Store, soon};

fn start(program: &str, store: &Store, args: &[&str]) -> Child {
    let mut command = Command::new(program);
    command
        .args(args)
        .env("DLOCK_URL", store.url())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn terminate(mut child: Child) {
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let began = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if began.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(10)),
            None => {
                child.kill().unwrap();
                panic!("it does not end");
            }
        }
    };
    assert!(status.success());
}

#[tokio::test]
async fn a_leader_that_is_told_to_end_leaves_the_lead_to_the_next() {
    let store = Store::new();
    let client = store.client().await;
    let election = client.election(NAME).unwrap();
    let mut leaders = election.observe().await.unwrap();
    let leader = start(env!("CARGO_BIN_EXE_leader"), &store, &[]);
    soon(leaders.next()).await.unwrap().unwrap();
    terminate(leader);
    // Sooner than the ttl of 30 s: it has resigned.
    let next = tokio::time::timeout(Duration::from_secs(20), election.campaign()).await;
    next.unwrap().unwrap().resign().await.unwrap();
    client.close().await.unwrap();
}

#[test]
fn the_shop_answers_and_ends_when_it_is_told_to() {
    let store = Store::new();
    let mut shop = start(env!("CARGO_BIN_EXE_shop"), &store, &["127.0.0.1:0"]);
    let mut address = String::new();
    BufReader::new(shop.stdout.take().unwrap())
        .read_line(&mut address)
        .unwrap();
    let mut connection = TcpStream::connect(address.trim()).unwrap();
    let request = "PUT /stock/42 HTTP/1.1\r\nHost: shop\r\nConnection: close\r\n\
                   Content-Type: application/json\r\nContent-Length: 1\r\n\r\n5";
    connection.write_all(request.as_bytes()).unwrap();
    let mut response = String::new();
    connection.read_to_string(&mut response).unwrap();
    assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
    terminate(shop);
}
