//! The threads of a proxy. This process has no other proxy, so they can be counted.

use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use dlock_conformance::proxy::ProxyNetwork;

/// Waits until there are that many. The system shows one for a moment after it was joined.
fn wait_for(expected: usize) {
    let is_theirs = |task: &std::fs::DirEntry| {
        let name = std::fs::read_to_string(task.path().join("comm"));
        name.is_ok_and(|name| name.starts_with("dlock-proxy-"))
    };
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        let tasks = std::fs::read_dir("/proc/self/task").expect("Linux shows them");
        let count = tasks.flatten().filter(is_theirs).count();
        if count == expected {
            return;
        }
        assert!(Instant::now() < until, "{count} threads, and not {expected}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn dropping_a_network_ends_every_thread() {
    let server = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = server.local_addr().expect("it is bound");
    let net = ProxyNetwork::start(&[address.into()]).expect("it starts");
    let address = net.addresses()[0].tcp().expect("it listens");
    let ends = [(); 5].map(|()| (TcpStream::connect(address), server.accept()));
    // Four of each connection, and the listener.
    wait_for(21);
    drop(net);
    wait_for(0);
    drop(ends);
}
