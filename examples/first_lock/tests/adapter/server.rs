//! The Redis server that the rules run against.

use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

pub struct Server {
    pub address: SocketAddr,
    /// It ends when its input does, whichever way this process ends.
    _child: Option<Child>,
}

impl Server {
    /// The one that another process was told of, that of `REDIS_URL` (`redis://127.0.0.1:6379`), or one of
    /// its own.
    pub fn find(handed_over: Option<String>) -> Self {
        let url = handed_over.or_else(|| std::env::var("REDIS_URL").ok());
        let Some(url) = url else { return Self::start() };
        let place = url.trim_start_matches("redis://").trim_end_matches('/');
        let address = place.to_socket_addrs().ok().and_then(|mut all| all.next());
        Self { address: address.unwrap_or_else(|| panic!("this is no host and port: {url}")), _child: None }
    }

    fn start() -> Self {
        if Command::new("redis-server").arg("--version").stdout(Stdio::null()).status().is_err() {
            eprintln!("redis-server is not installed: install it, or set REDIS_URL=redis://HOST:PORT");
            std::process::exit(3);
        }
        let free = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
        let address = free.expect("there is a free port");
        let script = "redis-server --port $0 --save '' --appendonly no > /dev/null & read _; kill $!";
        let port = address.port().to_string();
        let child = Command::new("sh").args(["-c", script, &port]).stdin(Stdio::piped()).spawn();
        let server = Self { address, _child: Some(child.expect("there is a shell")) };
        for _ in 0..500 {
            if TcpStream::connect(address).is_ok() {
                return server;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("redis-server does not listen on {address}")
    }
}
