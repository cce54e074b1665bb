//! A proxy before a server, which does to lines what a network does to them: with Redis, to those that listen
//! apart from those that ask.

use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::ports::Port;

/// Of all that a client sends only a subscription has it.
const LISTENS: &[u8] = b"SUBSCRIBE";

/// A proxy, which is gone when it is dropped, and its lines with it.
#[derive(Debug)]
pub struct Proxy {
    port: Port,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    to: SocketAddr,
    lines: Vec<Arc<Line>>,
    /// No subscription gets through.
    holds_ears: bool,
    barred: Barred,
    closed: bool,
}

/// Who gets no line, by the address that they come from.
struct Barred(Box<dyn Fn(SocketAddr) -> bool + Send>);

impl fmt::Debug for Barred {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Barred")
    }
}

/// A client's connection, and that to the server which belongs to it.
#[derive(Debug)]
struct Line {
    client: TcpStream,
    server: TcpStream,
    listens: AtomicBool,
    is_mute: AtomicBool,
    loses_answers: AtomicBool,
}

impl Line {
    fn cut(&self) {
        for end in [&self.client, &self.server] {
            // It may have ended already.
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

impl Proxy {
    /// A proxy before the server there.
    pub fn start(to: SocketAddr) -> io::Result<Self> {
        let port = Port::free()?;
        let listener = TcpListener::bind(port.address())?;
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                to,
                lines: Vec::new(),
                holds_ears: false,
                barred: Barred(Box::new(|_| false)),
                closed: false,
            }),
            changed: Condvar::new(),
        });
        let proxy = Self {
            port,
            shared: shared.clone(),
        };
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if shared.state().closed {
                    return;
                }
                // A line that cannot be made is one that ends.
                let _ = client.and_then(|client| shared.join(client));
            }
        });
        Ok(proxy)
    }

    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// As an address that is another server's from now on: new lines lead there, and those that there are
    /// have ended. (One that is being made at this moment may lead to the server of before.)
    pub fn lead_to(&self, to: SocketAddr) {
        self.shared.state().to = to;
        self.cut();
    }

    /// Ends all lines.
    pub fn cut(&self) {
        let lines = std::mem::take(&mut self.shared.state().lines);
        lines.iter().for_each(|line| line.cut());
    }

    /// From now on, clients whose address matches get no connection, and their present ones end. All others
    /// do.
    pub fn bar(&self, who: impl Fn(SocketAddr) -> bool + Send + 'static) {
        let mut state = self.shared.state();
        let barred = |line: &&Arc<Line>| line.client.peer_addr().is_ok_and(&who);
        state.lines.iter().filter(barred).for_each(|line| line.cut());
        state.barred = Barred(Box::new(who));
    }

    /// What is asked on the lines that there are arrives still, and what is answered does not. How many there
    /// are.
    pub fn lose_answers(&self) -> usize {
        let state = self.shared.state();
        let all = state.lines.iter();
        all.map(|line| line.loses_answers.store(true, Ordering::SeqCst))
            .count()
    }

    /// Ends the lines that listen.
    pub fn cut_ears(&self) {
        let state = self.shared.state();
        let ears = state.lines.iter().filter(|l| l.listens.load(Ordering::SeqCst));
        ears.for_each(|line| line.cut());
    }

    /// As a network that is cut: what is sent on any line goes nowhere from now on, and nobody is told. New
    /// ones are made as ever.
    pub fn mute(&self) {
        let state = self.shared.state();
        let lines = state.lines.iter();
        lines.for_each(|line| line.is_mute.store(true, Ordering::SeqCst));
    }

    /// As a NAT that forgot them: what is sent on the lines that listen goes nowhere from now on, and nobody
    /// is told. New ones are made as ever. How many there were.
    pub fn mute_ears(&self) -> usize {
        let state = self.shared.state();
        let ears = state.lines.iter().filter(|l| l.listens.load(Ordering::SeqCst));
        ears.map(|line| line.is_mute.store(true, Ordering::SeqCst))
            .count()
    }

    /// Keeps back whatever has a subscription in it, until [`let_ears`](Self::let_ears).
    pub fn hold_ears(&self) {
        self.shared.state().holds_ears = true;
    }

    pub fn let_ears(&self) {
        self.shared.state().holds_ears = false;
        self.shared.changed.notify_all();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.state().closed = true;
        self.let_ears();
        self.cut();
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address());
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn join(self: &Arc<Self>, client: TcpStream) -> io::Result<()> {
        let to = self.state().to;
        let server = TcpStream::connect(to)?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (from_client, from_server) = (client.try_clone()?, server.try_clone()?);
        let line = Arc::new(Line {
            client,
            server,
            listens: AtomicBool::new(false),
            is_mute: AtomicBool::new(false),
            loses_answers: AtomicBool::new(false),
        });
        {
            let mut state = self.state();
            if (state.barred.0)(line.client.peer_addr()?) {
                return Ok(());
            }
            state.lines.push(line.clone());
        }
        let (there, back) = (self.clone(), self.clone());
        let same = line.clone();
        std::thread::spawn(move || there.pump(from_client, &line, true));
        std::thread::spawn(move || back.pump(from_server, &same, false));
        Ok(())
    }

    /// Takes what comes from one end to the other, until one of them has ended.
    fn pump(&self, mut from: TcpStream, line: &Line, is_of_client: bool) {
        let mut to = if is_of_client { &line.server } else { &line.client };
        let mut buffer = [0; 16_384];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            let bytes = &buffer[..length];
            if is_of_client && bytes.windows(LISTENS.len()).any(|word| word == LISTENS) {
                line.listens.store(true, Ordering::SeqCst);
                let state = self.state();
                let free = self.changed.wait_while(state, |state| state.holds_ears);
                drop(free);
            }
            let is_lost = !is_of_client && line.loses_answers.load(Ordering::SeqCst);
            if !line.is_mute.load(Ordering::SeqCst) && !is_lost && to.write_all(bytes).is_err() {
                break;
            }
        }
        line.cut();
    }
}
