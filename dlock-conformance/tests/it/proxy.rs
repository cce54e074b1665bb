//! Each fault against a plain server that answers every line with the same line.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dlock_conformance::network::{Cut, Direction, Fault, Network};
use dlock_conformance::proxy::{ProxyNetwork, ServerAddress};
use rustix::net;

/// Waited in full only where something is wrong; a machine with much to do is late.
const SOON: Duration = Duration::from_secs(10);

/// What the server has heard so far.
type Heard = Arc<Mutex<Vec<String>>>;

fn echo() -> (ServerAddress, Heard) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().into();
    let heard = Heard::default();
    let hears = heard.clone();
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let (socket, hears) = (socket.unwrap(), hears.clone());
            std::thread::spawn(move || {
                let mut lines = BufReader::new(socket.try_clone().unwrap());
                let mut line = String::new();
                while lines.read_line(&mut line).is_ok_and(|n| n > 0) {
                    hears.lock().unwrap().push(line.trim().to_owned());
                    if (&socket).write_all(line.as_bytes()).is_err() {
                        return;
                    }
                    line.clear();
                }
            });
        }
    });
    (address, heard)
}

fn dial(address: &ServerAddress) -> io::Result<TcpStream> {
    let socket = TcpStream::connect(address.tcp().unwrap())?;
    socket.set_read_timeout(Some(SOON))?;
    socket.set_nodelay(true)?;
    Ok(socket)
}

fn say(mut socket: &TcpStream, line: &str) {
    // In one piece: two would be two hits of a fault, or one, as it happens.
    socket.write_all(format!("{line}\n").as_bytes()).unwrap();
}

fn hear(socket: &TcpStream) -> io::Result<String> {
    let mut line = Vec::new();
    let mut byte = [0];
    loop {
        match (&mut &*socket).read(&mut byte)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ if byte[0] == b'\n' => return Ok(String::from_utf8(line).unwrap()),
            _ => line.push(byte[0]),
        }
    }
}

fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let until = Instant::now() + SOON;
    while !holds() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn hears(heard: &Heard, line: &str) -> bool {
    heard.lock().unwrap().iter().any(|l| l == line)
}

/// A network before a server that is the test itself: both ends of a connection over it.
fn both_ends() -> (ProxyNetwork, TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let net = ProxyNetwork::start(&[listener.local_addr().unwrap().into()]).unwrap();
    let client = dial(&net.addresses()[0]).unwrap();
    let server = listener.accept().unwrap().0;
    server.set_read_timeout(Some(SOON)).unwrap();
    (net, client, server)
}

fn reset(socket: TcpStream) {
    rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::ZERO)).unwrap();
    drop(socket);
}

/// A network before one server, and a connection over it that works.
fn connected() -> (ProxyNetwork, TcpStream, Heard) {
    let (server, heard) = echo();
    let net = ProxyNetwork::start(&[server]).unwrap();
    let socket = dial(&net.addresses()[0]).unwrap();
    say(&socket, "hello");
    assert_eq!(hear(&socket).unwrap(), "hello");
    (net, socket, heard)
}

#[test]
fn bytes_pass_unchanged_and_turns_and_connections_are_counted() {
    let (net, socket, _) = connected();
    say(&socket, "again");
    assert_eq!(hear(&socket).unwrap(), "again");
    let traffic = net.traffic();
    assert_eq!(
        (traffic.connections, traffic.requests, traffic.replies),
        (1, 2, 2)
    );
    let many: String = "x".repeat(300_000);
    let (writes, line) = (socket.try_clone().unwrap(), many.clone());
    let writer = std::thread::spawn(move || say(&writes, &line));
    let mut reply = String::new();
    BufReader::new(&socket).read_line(&mut reply).unwrap();
    writer.join().unwrap();
    assert_eq!(reply.trim(), many);
}

#[test]
fn several_servers_have_a_proxy_each() {
    let ((one, one_heard), (two, two_heard)) = (echo(), echo());
    let net = ProxyNetwork::start(&[one, two]).unwrap();
    for (i, text) in ["first", "second"].into_iter().enumerate() {
        let socket = dial(&net.addresses()[i]).unwrap();
        say(&socket, text);
        assert_eq!(hear(&socket).unwrap(), text);
    }
    assert!(hears(&one_heard, "first") && !hears(&one_heard, "second"));
    assert!(hears(&two_heard, "second"));
    assert_eq!(net.traffic().connections, 2);
}

#[test]
fn a_delay_is_per_direction_and_does_not_accumulate() {
    let (net, socket, heard) = connected();
    let by = Duration::from_millis(500);
    let slow = net.begin(Fault::Delay(Direction::ToClient, by));
    let from = Instant::now();
    for n in 0..4 {
        say(&socket, &n.to_string());
        wait_until("requests are not delayed", || hears(&heard, &n.to_string()));
    }
    assert!(from.elapsed() < by, "{:?}", from.elapsed());
    for n in 0..4 {
        assert_eq!(hear(&socket).unwrap(), n.to_string());
    }
    let took = from.elapsed();
    assert!(took >= by && took < by * 3, "{took:?}");
    assert!(slow.hits() >= 1);
    slow.heal();
    let from = Instant::now();
    say(&socket, "quick");
    assert_eq!(hear(&socket).unwrap(), "quick");
    assert!(from.elapsed() < by);
}

#[test]
fn a_cut_shows_as_a_reset_or_an_end() {
    for (how, kind) in [
        (Cut::Reset, io::ErrorKind::ConnectionReset),
        (Cut::Fin, io::ErrorKind::UnexpectedEof),
    ] {
        let (net, socket, _) = connected();
        assert_eq!(net.cut(how), 1);
        assert_eq!(hear(&socket).unwrap_err().kind(), kind, "{how:?}");
        let again = dial(&net.addresses()[0]).unwrap();
        say(&again, "back");
        assert_eq!(hear(&again).unwrap(), "back");
        assert_eq!(net.cut(how), 1, "the old one is not cut again");
    }
}

#[test]
fn bytes_in_a_black_hole_are_lost_and_their_connection_is_cut() {
    let (net, socket, heard) = connected();
    let hole = net.begin(Fault::BlackHole(Direction::ToClient));
    say(&socket, "arrives");
    wait_until("requests pass", || hears(&heard, "arrives"));
    wait_until("the reply is lost", || hole.hits() == 1);
    hole.heal();
    assert_eq!(hear(&socket).unwrap_err().kind(), io::ErrorKind::ConnectionReset);

    let (net, socket, heard) = connected();
    let hole = net.begin(Fault::BlackHole(Direction::Both));
    say(&socket, "vanishes");
    wait_until("the request is lost", || hole.hits() == 1);
    // New connections fare no better.
    let other = dial(&net.addresses()[0]).unwrap();
    say(&other, "vanishes too");
    wait_until("the other is lost", || hole.hits() == 2);
    assert!(!hears(&heard, "vanishes") && !hears(&heard, "vanishes too"));
}

#[test]
fn held_data_arrives_in_order_after_the_fault() {
    let (net, socket, heard) = connected();
    let held = net.begin(Fault::Hold(Direction::ToServer));
    say(&socket, "one");
    wait_until("it is held", || held.hits() == 1);
    say(&socket, "two");
    std::thread::sleep(Duration::from_millis(20));
    assert!(!hears(&heard, "one") && !hears(&heard, "two"));
    held.heal();
    assert_eq!(hear(&socket).unwrap(), "one");
    assert_eq!(hear(&socket).unwrap(), "two");
}

#[test]
fn an_absent_server_refuses_and_returns_at_the_same_address() {
    let (net, socket, _) = connected();
    let away = net.begin(Fault::Away);
    assert_eq!(away.hits(), 2, "one connection, and the server");
    assert_eq!(hear(&socket).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    let refused = dial(&net.addresses()[0]).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    away.heal();
    let again = dial(&net.addresses()[0]).unwrap();
    say(&again, "back");
    assert_eq!(hear(&again).unwrap(), "back");
}

/// A client of it would reach the server behind whatever got the port.
#[test]
fn the_port_of_an_absent_server_is_given_to_nobody() {
    let (server, _) = echo();
    // What is left of the last connection may keep it as well, but seldom.
    for _ in 0..20 {
        let proxies = ProxyNetwork::start(std::slice::from_ref(&server)).unwrap();
        let _away = proxies.begin(Fault::Away);
        let other = net::socket(net::AddressFamily::INET, net::SocketType::STREAM, None).unwrap();
        let taken = net::bind(&other, &proxies.addresses()[0].tcp().unwrap());
        assert_eq!(taken.unwrap_err(), rustix::io::Errno::ADDRINUSE);
    }
}

#[test]
fn a_swallowed_reply_belongs_to_an_executed_request() {
    let (net, socket, heard) = connected();
    let swallow = net.begin(Fault::SwallowNextReply);
    say(&socket, "done");
    assert_eq!(hear(&socket).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(swallow.hits(), 1);
    assert!(hears(&heard, "done"));
    // Once.
    let again = dial(&net.addresses()[0]).unwrap();
    say(&again, "back");
    assert_eq!(hear(&again).unwrap(), "back");
}

#[test]
fn a_late_request_arrives_after_newer_ones() {
    let (net, socket, heard) = connected();
    let late = net.begin(Fault::DeliverLate);
    say(&socket, "old");
    // Cut off at once, and not only given up by itself.
    assert_ne!(hear(&socket).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    assert_eq!(late.hits(), 1);
    let again = dial(&net.addresses()[0]).unwrap();
    say(&again, "new");
    assert_eq!(hear(&again).unwrap(), "new");
    assert!(!hears(&heard, "old"));
    late.heal();
    wait_until("it arrives", || hears(&heard, "old"));
    assert_eq!(*heard.lock().unwrap(), ["hello", "new", "old"]);
    say(&again, "newer");
    assert_eq!(hear(&again).unwrap(), "newer", "nobody else hears its reply");
}

#[test]
fn a_fault_ends_with_its_guard_and_threads_with_the_network() {
    let (net, socket, _) = connected();
    {
        let _held = net.begin(Fault::Hold(Direction::Both));
        say(&socket, "kept");
        let _hole = net.begin(Fault::BlackHole(Direction::ToClient));
    }
    assert_eq!(hear(&socket).unwrap(), "kept");
    let _held = net.begin(Fault::Hold(Direction::Both));
    let late = net.begin(Fault::DeliverLate);
    say(&socket, "stays");
    wait_until("it is stranded", || late.hits() == 1);
    let address = net.addresses()[0].clone();
    // Joins them all; the watchdog of the test run would tell.
    drop(net);
    assert!(dial(&address).is_err());
    drop(late);
}

#[test]
fn a_half_close_leaves_the_other_direction_open() {
    let (_net, mut client, mut server) = both_ends();
    client.write_all(b"all").unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let mut text = String::new();
    server.read_to_string(&mut text).unwrap();
    server.write_all(b"thanks").unwrap();
    drop(server);
    client.read_to_string(&mut text).unwrap();
    assert_eq!(text, "allthanks");
}

#[test]
fn a_reset_of_one_end_is_a_reset_of_the_other() {
    let (_net, client, server) = both_ends();
    reset(client);
    assert_eq!(hear(&server).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    let (_net, client, server) = both_ends();
    reset(server);
    assert_eq!(hear(&client).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
}

#[test]
fn a_server_that_sends_to_a_gone_client_is_cut_off() {
    let (_net, client, mut server) = both_ends();
    drop(client);
    let until = Instant::now() + SOON;
    while server.write_all(b"anybody?").is_ok() {
        assert!(Instant::now() < until, "nobody tells it");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_hold_keeps_one_direction_only() {
    let (net, socket, heard) = connected();
    let held = net.begin(Fault::Hold(Direction::ToClient));
    say(&socket, "arrives");
    wait_until("requests pass", || hears(&heard, "arrives"));
    wait_until("the reply is held", || held.hits() == 1);
    held.heal();
    assert_eq!(hear(&socket).unwrap(), "arrives");
}

#[test]
fn a_connection_without_a_hole_outlives_the_black_hole() {
    let (net, socket, _) = connected();
    let quiet = dial(&net.addresses()[0]).unwrap();
    say(&quiet, "hello");
    assert_eq!(hear(&quiet).unwrap(), "hello");
    let hole = net.begin(Fault::BlackHole(Direction::ToServer));
    say(&socket, "vanishes");
    wait_until("the request is lost", || hole.hits() == 1);
    hole.heal();
    assert_eq!(hear(&socket).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    say(&quiet, "still here");
    assert_eq!(hear(&quiet).unwrap(), "still here");
    let third = dial(&net.addresses()[0]).unwrap();
    say(&third, "me too");
    assert_eq!(hear(&third).unwrap(), "me too");
    assert_eq!(net.cut(Cut::Fin), 2, "all that are left");
}

#[test]
fn each_fault_delivers_the_request_that_it_has_kept() {
    let (net, one, heard) = connected();
    let two = dial(&net.addresses()[0]).unwrap();
    let first = net.begin(Fault::DeliverLate);
    say(&one, "one");
    // An end behind it is part of what is kept.
    one.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(hear(&one).is_err());
    let second = net.begin(Fault::DeliverLate);
    say(&two, "two");
    assert!(hear(&two).is_err());
    second.heal();
    wait_until("the second arrives", || hears(&heard, "two"));
    std::thread::sleep(Duration::from_millis(20));
    assert!(!hears(&heard, "one"));
    first.heal();
    wait_until("the first arrives", || hears(&heard, "one"));
}

#[test]
fn a_reply_to_a_stranded_client_leaves_the_late_request_alone() {
    let (net, socket, heard) = connected();
    let held = net.begin(Fault::Hold(Direction::ToClient));
    say(&socket, "asked");
    wait_until("the reply is held", || held.hits() == 1);
    let late = net.begin(Fault::DeliverLate);
    say(&socket, "late");
    assert!(hear(&socket).is_err());
    held.heal();
    // For the writer to find that nobody takes the reply.
    std::thread::sleep(Duration::from_millis(20));
    late.heal();
    wait_until("it arrives", || hears(&heard, "late"));
}

#[test]
fn overlapping_absences_end_without_a_connection_of_the_proxy() {
    let (net, _socket, _) = connected();
    let from = Instant::now();
    let (one, two) = (net.begin(Fault::Away), net.begin(Fault::Away));
    one.heal();
    two.heal();
    let again = dial(&net.addresses()[0]).unwrap();
    say(&again, "back");
    assert_eq!(hear(&again).unwrap(), "back");
    assert_eq!(net.traffic().connections, 2);
    // A door is waited for two seconds at most.
    assert!(
        from.elapsed() < Duration::from_secs(4),
        "doors were waited for in vain"
    );
}

#[test]
fn dropping_a_network_cuts_every_connection() {
    let (net, socket, _) = connected();
    let others: Vec<TcpStream> = (0..4).map(|_| dial(&net.addresses()[0]).unwrap()).collect();
    for other in &others {
        say(other, "hello");
        assert_eq!(hear(other).unwrap(), "hello");
    }
    drop(net);
    for socket in others.iter().chain([&socket]) {
        assert_eq!(hear(socket).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    }
}

#[test]
fn a_fault_at_one_server_spares_the_others() {
    let servers = [echo().0, echo().0, echo().0];
    let net = ProxyNetwork::start(&servers).unwrap();
    let sockets: Vec<_> = net.addresses().iter().map(|a| dial(a).unwrap()).collect();
    // Where it is broken it may be so already when it is written to.
    let heard = |n: usize| {
        (&sockets[n]).write_all(b"hello\n")?;
        hear(&sockets[n])
    };
    for n in 0..3 {
        assert_eq!(heard(n).unwrap(), "hello");
    }
    let second = net.server(1).unwrap();
    let before = second.traffic();
    assert_eq!(
        (before.connections, before.requests, net.traffic().requests),
        (1, 1, 3)
    );
    let away = second.begin(Fault::Away);
    assert!(heard(1).is_err() && dial(&net.addresses()[1]).is_err());
    assert_eq!((away.hits(), heard(0).unwrap().as_str()), (2, "hello"));
    away.heal();
    let again = dial(&net.addresses()[1]).unwrap();
    say(&again, "again");
    assert_eq!(hear(&again).unwrap(), "again");
    // What strikes once strikes one of them, wherever it is asked for.
    let swallow = net.begin(Fault::SwallowNextReply);
    assert!(heard(2).is_err());
    assert_eq!((swallow.hits(), heard(0).unwrap().as_str()), (1, "hello"));
    swallow.heal();
    assert_eq!(second.cut(Cut::Reset), 1);
    assert!(hear(&again).is_err());
    assert!(heard(0).is_ok() && net.server(3).is_none());
    // Of a network that is gone there is nothing left to break.
    drop(net);
    assert_eq!(second.cut(Cut::Reset), 0);
    second.begin(Fault::Away).heal();
}

#[cfg(unix)]
#[test]
fn a_network_and_its_addresses_are_shown() {
    let (net, _socket, _) = connected();
    let own = &net.addresses()[0];
    assert_eq!(own.to_string(), own.tcp().unwrap().to_string());
    let shown = format!("{net:?}");
    assert!(shown.contains(&format!("{own:?}")), "{shown}");
    assert!(shown.contains("connections: 1"), "{shown}");
    assert_eq!(own.unix(), None);
    let path = ServerAddress::Unix("/run/a.sock".into());
    assert_eq!((path.tcp(), path.to_string().as_str()), (None, "/run/a.sock"));
}

#[cfg(unix)]
#[test]
fn unix_sockets_are_proxied_too() {
    use std::os::unix::net::{UnixListener, UnixStream};
    let path = std::env::temp_dir().join(format!("dlock-echo-{}.sock", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let mut socket = socket.unwrap();
            let mut byte = [0];
            while socket.read(&mut byte).is_ok_and(|n| n > 0) {
                let _ = socket.write_all(&byte);
            }
        }
    });
    let net = ProxyNetwork::start(&[ServerAddress::Unix(path.clone())]).unwrap();
    let own = net.addresses()[0].unix().unwrap().to_owned();
    let mut socket = UnixStream::connect(&own).unwrap();
    let mut byte = [0];
    socket.write_all(b"a").unwrap();
    socket.read_exact(&mut byte).unwrap();
    assert_eq!(&byte, b"a");
    assert_eq!(net.cut(Cut::Reset), 1);
    assert!(!matches!(socket.read(&mut byte), Ok(n) if n > 0));
    drop(net);
    assert!(!own.exists());
    let _ = std::fs::remove_file(path);
}
