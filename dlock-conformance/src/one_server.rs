//! A harness for a lock library with one server: all that is needed besides a [`Library`].

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use dlock_core::Runtime;
use futures::FutureExt;
use futures::future::ready;

use crate::claims::Claims;
use crate::cx::Cx;
use crate::foreign::{Foreign, Library};
use crate::harness::{Connecting, Harness};
use crate::proxy::ServerAddress;
use crate::subject::Subject;

/// A [`Harness`] for a [`Library`] whose clients use one TCP server. Rules that break the network or kill
/// processes run as well.
pub struct OneServer<F> {
    claims: Claims,
    runtime: Arc<dyn Runtime>,
    server: SocketAddr,
    client: F,
}

impl<F, L: Library> OneServer<F>
where
    F: Fn(SocketAddr) -> L,
{
    /// `client` makes a client for the server at the given address, which is `server` or the kit's proxy in
    /// front of it. Clients must share nothing. It is called on the runtime.
    ///
    /// # Panics
    /// If the host does not resolve.
    pub fn new(claims: Claims, runtime: Arc<dyn Runtime>, server: impl ToSocketAddrs, client: F) -> Self {
        let found = server.to_socket_addrs().map(|mut all| all.next());
        let Ok(Some(server)) = found else {
            panic!("the address of the server is not a HOST:PORT that resolves: {found:?}");
        };
        Self {
            claims,
            runtime,
            server,
            client,
        }
    }

    fn subject(&self, server: SocketAddr) -> Connecting<'static> {
        let library = (self.client)(server);
        let capabilities = self.claims.capabilities.clone();
        let subject = Foreign::new(library, capabilities, Arc::clone(&self.runtime));
        ready(Ok(Arc::new(subject) as Arc<dyn Subject>)).boxed()
    }
}

impl<F, L: Library> Harness for OneServer<F>
where
    F: Fn(SocketAddr) -> L + Send + Sync + 'static,
{
    fn claims(&self) -> Claims {
        self.claims.clone()
    }

    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::clone(&self.runtime)
    }

    fn connect<'a>(&'a self, cx: &'a Cx) -> Connecting<'a> {
        self.subject(cx.addr(0).and_then(|at| at.tcp()).unwrap_or(self.server))
    }

    fn connect_nowhere<'a>(&'a self, _: &'a Cx) -> Option<Connecting<'a>> {
        // A port without a listener.
        Some(self.subject((Ipv4Addr::LOCALHOST, 1).into()))
    }

    fn servers(&self) -> Vec<ServerAddress> {
        vec![self.server.into()]
    }

    fn hand_over(&self) -> Option<String> {
        Some(self.server.to_string())
    }
}

impl<F> fmt::Debug for OneServer<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OneServer")
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}
