//! One connection: two sockets, two lanes, four threads.

use std::io;
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::faults::Faults;
use super::lane::{Lane, Next};
use super::socket::Socket;
use crate::lock::lock;
use crate::network::{Cut, Direction, Fault};

/// A request may come in several pieces. A kept request is complete when nothing has followed for that long.
const QUIET: Duration = Duration::from_millis(5);

/// 128 KiB: they do little, and there are four for each connection.
const STACK: usize = 0x2_0000;

pub(super) struct Connection {
    client: Socket,
    server: Socket,
    to_server: Lane,
    to_client: Lane,
    /// Which side sent last: 0 neither, 1 the client, 2 the server.
    speaker: AtomicU64,
    /// It has lost data.
    holed: AtomicBool,
    /// The next data from the server is dropped, and the connection cut.
    swallow: AtomicBool,
    /// A request that outlives the client's connection, and the fault that keeps it.
    late: Mutex<Option<(u64, Vec<u8>)>>,
    /// The client's side is gone, and data from the server is dropped.
    stranded: AtomicBool,
    cut: AtomicBool,
}

impl Connection {
    /// Starts the threads of a connection.
    pub(super) fn start(client: Socket, server: Socket, faults: &Arc<Faults>) -> io::Result<()> {
        let connection = Arc::new(Self {
            client,
            server,
            to_server: Lane::new(Direction::ToServer),
            to_client: Lane::new(Direction::ToClient),
            speaker: AtomicU64::new(0),
            holed: AtomicBool::new(false),
            swallow: AtomicBool::new(false),
            late: Mutex::default(),
            stranded: AtomicBool::new(false),
            cut: AtomicBool::new(false),
        });
        faults.enter(&connection);
        for way in [Direction::ToServer, Direction::ToClient] {
            let (c, f) = (connection.clone(), faults.clone());
            faults.runs(thread("reader", move || c.read(way, &f))?);
            let (c, f) = (connection.clone(), faults.clone());
            faults.runs(thread("writer", move || c.write(way, &f))?);
        }
        Ok(())
    }

    /// The lane of that way, its source and its sink.
    fn ends(&self, way: Direction) -> (&Lane, &Socket, &Socket) {
        match way {
            Direction::ToClient => (&self.to_client, &self.server, &self.client),
            _ => (&self.to_server, &self.client, &self.server),
        }
    }

    fn read(&self, way: Direction, faults: &Faults) {
        let (lane, source, _) = self.ends(way);
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let got = source.read(&mut buffer);
            if self.cut.load(Ordering::Acquire) {
                return;
            }
            let n = match got {
                Ok(0) => return lane.end(),
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                // A reset on one side is passed on to the other.
                Err(_) => return self.cut(Cut::Reset),
            };
            let bytes = buffer[..n].to_vec();
            self.count_turn(way, faults);
            if way == Direction::ToServer {
                if let Some((id, _)) = faults.take(Fault::DeliverLate) {
                    return self.strand(id, bytes);
                }
                if faults.take(Fault::SwallowNextReply).is_some() {
                    self.swallow.store(true, Ordering::Release);
                }
            } else if self.stranded.load(Ordering::Acquire) {
                // The reply to the late request, or before it a push without a receiver.
                if lock(&self.late).is_none() {
                    return self.cut(Cut::Fin);
                }
                continue;
            } else if self.swallow.load(Ordering::Acquire) {
                return self.cut(Cut::Reset);
            }
            lane.push(bytes);
        }
    }

    fn write(&self, way: Direction, faults: &Faults) {
        let (lane, source, sink) = self.ends(way);
        loop {
            match lane.next(faults) {
                Next::Write(bytes) => {
                    if sink.write_all(&bytes).is_err() {
                        if way == Direction::ToClient && self.stranded.load(Ordering::Acquire) {
                            continue;
                        }
                        return self.cut(Cut::Reset);
                    }
                }
                Next::Lost => self.holed.store(true, Ordering::Release),
                Next::End => return sink.shut(Shutdown::Write),
                Next::Dead => {
                    // Nothing writes to it any more. Its reader is woken.
                    source.shut(Shutdown::Read);
                    return;
                }
            }
        }
    }

    fn count_turn(&self, way: Direction, faults: &Faults) {
        let (speaker, counter) = match way {
            Direction::ToClient => (2, &faults.replies),
            _ => (1, &faults.requests),
        };
        if self.speaker.swap(speaker, Ordering::AcqRel) != speaker {
            counter.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Keeps a request for later, and cuts the client off from it.
    fn strand(&self, fault: u64, mut bytes: Vec<u8>) {
        let mut buffer = vec![0; 64 * 1024];
        let _ = self.client.set_patience(Some(QUIET));
        while let Ok(n) = self.client.read(&mut buffer) {
            if n == 0 {
                break;
            }
            bytes.extend_from_slice(&buffer[..n]);
        }
        *lock(&self.late) = Some((fault, bytes));
        self.stranded.store(true, Ordering::Release);
        // Both directions at once, since the reset itself waits for the last thread to let go of the socket.
        self.client.will_reset();
        self.client.shut(Shutdown::Both);
    }

    /// Delivers what that fault keeps, if it keeps something here.
    pub(super) fn deliver_late(&self, fault: u64) {
        let bytes = {
            let mut late = lock(&self.late);
            match &*late {
                Some((by, _)) if *by == fault => late.take().map(|(_, bytes)| bytes),
                _ => None,
            }
        };
        if let Some(bytes) = bytes {
            // Behind the data that was in flight before it.
            self.to_server.push(bytes);
        }
    }

    pub(super) fn is_holed(&self) -> bool {
        self.holed.load(Ordering::Acquire)
    }

    pub(super) fn wake(&self) {
        self.to_server.wake();
        self.to_client.wake();
    }

    /// Breaks it, once. `true` if this call did.
    pub(super) fn break_off(&self, how: Cut) -> bool {
        let first = !self.cut.swap(true, Ordering::AcqRel);
        if first {
            match how {
                // Closed by the last of the threads to let go of it, which the shut lanes make soon.
                Cut::Reset => {
                    self.client.will_reset();
                    self.server.will_reset();
                }
                Cut::Fin => {
                    self.client.shut(Shutdown::Both);
                    self.server.shut(Shutdown::Both);
                }
            }
            self.to_server.kill();
            self.to_client.kill();
        }
        first
    }

    fn cut(&self, how: Cut) {
        self.break_off(how);
    }
}

fn thread(what: &str, body: impl FnOnce() + Send + 'static) -> io::Result<std::thread::JoinHandle<()>> {
    std::thread::Builder::new()
        .name(format!("dlock-proxy-{what}"))
        .stack_size(STACK)
        .spawn(body)
}
