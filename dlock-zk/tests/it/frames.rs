//! A way to a server on which requests are seen one by one, and can be stopped: what a proxy of bytes cannot
//! do.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use futures::future::{Either, select};

use crate::{LONG, until};

/// What requests are called on the wire.
pub(crate) const DELETE: i32 = 2;
pub(crate) const EXISTS: i32 = 3;
pub(crate) const SET: i32 = 5;
pub(crate) const SYNC: i32 = 9;
pub(crate) const CHILDREN: i32 = 12;
pub(crate) const MULTI: i32 = 14;
pub(crate) const CREATE: i32 = 15;
pub(crate) const CREATE_CONTAINER: i32 = 19;

pub(crate) fn int(frame: &[u8], at: usize) -> Option<i32> {
    let bytes = frame.get(at..at + 4)?;
    bytes.try_into().ok().map(i32::from_be_bytes)
}

/// Carries frames until one of the two is gone, or one is made empty. The first one opens the session, and
/// its answer has no number.
pub(crate) fn carry(mut from: TcpStream, mut to: TcpStream, change: impl Fn(&mut Vec<u8>)) {
    let mut is_first = true;
    let mut one = || -> io::Result<()> {
        let mut length = [0; 4];
        from.read_exact(&mut length)?;
        let mut frame = vec![0; u32::from_be_bytes(length) as usize];
        from.read_exact(&mut frame)?;
        if !std::mem::take(&mut is_first) {
            change(&mut frame);
        }
        if frame.is_empty() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        to.write_all(&u32::try_from(frame.len()).unwrap().to_be_bytes())?;
        to.write_all(&frame)
    };
    while one().is_ok() {}
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// Takes each client to that server by threads of its own.
pub(crate) fn lead(
    server: SocketAddr,
    take: impl Fn(TcpStream, TcpStream) + Send + 'static,
) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let Ok((client, server)) = client.and_then(|c| Ok((c, TcpStream::connect(server)?))) else {
                return;
            };
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            take(client, server);
        }
    });
    Ok(address)
}

/// Where a way is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// At the first request of that kind: it does not come to the server, and nothing behind it.
    Before(i32),
    /// Behind it: the server has it, and from then on no answer comes back.
    Behind(i32),
}

/// A way to a server.
pub(crate) struct Way {
    pub(crate) address: SocketAddr,
    stops: Arc<Stops>,
}

#[derive(Default)]
struct Stops {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    at: Option<Stop>,
    /// It has come to that.
    stopped: Option<Stop>,
    /// What was kept back is lost.
    breaks: bool,
}

impl Way {
    pub(crate) fn to(server: SocketAddr) -> io::Result<Self> {
        let stops = Arc::new(Stops::default());
        let of_all = stops.clone();
        let address = lead(server, move |client, server| {
            let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
            let (there, answers) = (of_all.clone(), of_all.clone());
            std::thread::spawn(move || carry(client, server, |frame| there.request(frame)));
            std::thread::spawn(move || carry(back.0, back.1, |_| answers.answer()));
        })?;
        Ok(Self { address, stops })
    }

    /// Stops it there, from now on. What was stopped before goes on.
    pub(crate) fn stop(&self, at: Stop) {
        *self.stops.state() = State {
            at: Some(at),
            ..State::default()
        };
        self.stops.changed.notify_all();
    }

    /// Waits until it has come to that.
    pub(crate) async fn stopped(&self) {
        until("the way is stopped", LONG, async || {
            self.stops.state().stopped.is_some()
        })
        .await;
    }

    /// What was kept back goes on its way, and what comes after it.
    pub(crate) fn go_on(&self) {
        *self.stops.state() = State::default();
        self.stops.changed.notify_all();
    }

    /// Polls a call until the way has been stopped at each of these in turn, and drops it. Goes on then.
    pub(crate) async fn dropped<T>(&self, mut call: impl Future<Output = T> + Unpin, stops: &[Stop]) {
        for stop in stops {
            self.stop(*stop);
            match select(call, Box::pin(self.stopped())).await {
                Either::Left(_) => panic!("it was answered before {stop:?}"),
                Either::Right(((), goes_on)) => call = goes_on,
            }
        }
        drop(call);
        self.go_on();
    }

    /// What was kept back never comes to the server, and the connection breaks. Later ones are not stopped.
    pub(crate) fn break_off(&self) {
        *self.stops.state() = State {
            breaks: true,
            ..State::default()
        };
        self.stops.changed.notify_all();
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        self.go_on();
    }
}

impl Stops {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn request(&self, frame: &mut Vec<u8>) {
        let mut state = self.state();
        let kind = int(frame, 4);
        let Some(Stop::Before(at) | Stop::Behind(at)) = state.at else {
            return;
        };
        if kind == Some(at) && state.stopped.is_none() {
            state.stopped = state.at;
        }
        let is_stopped = |state: &mut State| matches!(state.stopped, Some(Stop::Before(_)));
        let mut state = self.changed.wait_while(state, is_stopped).unwrap();
        if std::mem::take(&mut state.breaks) {
            frame.clear();
        }
    }

    fn answer(&self) {
        let is_stopped = |state: &mut State| matches!(state.stopped, Some(Stop::Behind(_)));
        drop(self.changed.wait_while(self.state(), is_stopped).unwrap());
    }
}

/// A way to a server on which requests of one kind are carried out, and answered with a failure.
pub(crate) struct Fails {
    pub(crate) address: SocketAddr,
    begun: Arc<AtomicBool>,
    many: Arc<AtomicUsize>,
}

impl Fails {
    /// With that failure, as it is called on the wire.
    pub(crate) fn at(server: SocketAddr, kind: i32, failure: i32) -> io::Result<Self> {
        let (begun, many) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (has_begun, failed) = (begun.clone(), many.clone());
        let address = lead(server, move |client, server| {
            let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
            let asked = Arc::new(Mutex::new(Vec::new()));
            let (noted, has_begun, failed) = (asked.clone(), has_begun.clone(), failed.clone());
            std::thread::spawn(move || {
                carry(client, server, |frame| {
                    if int(frame, 4) == Some(kind) && has_begun.load(Ordering::SeqCst) {
                        failed.fetch_add(1, Ordering::SeqCst);
                        noted.lock().unwrap().extend(int(frame, 0));
                    }
                });
            });
            std::thread::spawn(move || {
                carry(back.0, back.1, |frame| {
                    // Its number, that of the transaction, and the failure.
                    if int(frame, 0).is_some_and(|number| asked.lock().unwrap().contains(&number)) {
                        frame.truncate(16);
                        frame[12..16].copy_from_slice(&failure.to_be_bytes());
                    }
                });
            });
        })?;
        Ok(Self { address, begun, many })
    }

    /// From now on they fail.
    pub(crate) fn begin(&self) {
        self.begun.store(true, Ordering::SeqCst);
    }

    /// How many have failed.
    pub(crate) fn many(&self) -> usize {
        self.many.load(Ordering::SeqCst)
    }
}
