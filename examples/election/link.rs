//! The way from one process to the store: a socket of its own, which can be cut.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// While it is cut nothing goes through, and nobody is told; later it all arrives.
pub(crate) struct Link {
    at: PathBuf,
    is_cut: Arc<AtomicBool>,
}

impl Link {
    pub(crate) fn new(at: PathBuf, to: &Path) -> std::io::Result<Self> {
        let listener = UnixListener::bind(&at)?;
        let is_cut = Arc::new(AtomicBool::new(false));
        let (cut, to) = (Arc::clone(&is_cut), to.to_owned());
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = UnixStream::connect(&to) else {
                    return;
                };
                if let (Ok(from_client), Ok(from_server)) = (client.try_clone(), server.try_clone()) {
                    let (there, back) = (Arc::clone(&cut), Arc::clone(&cut));
                    std::thread::spawn(move || carry(from_client, server, &there));
                    std::thread::spawn(move || carry(from_server, client, &back));
                }
            }
        });
        Ok(Self { at, is_cut })
    }

    pub(crate) fn url(&self) -> String {
        format!("redis+unix://{}", self.at.display())
    }

    pub(crate) fn cut(&self, yes: bool) {
        self.is_cut.store(yes, Ordering::SeqCst);
    }
}

fn carry(mut from: UnixStream, mut to: UnixStream, is_cut: &AtomicBool) {
    let mut buffer = [0; 4096];
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        while is_cut.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
        if to.write_all(&buffer[..n]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}
