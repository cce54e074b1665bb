//! The HTTP/2 connection to a member.
//!
//! The driver's own channels hand each request to one more task, which takes 7 µs, and connect again by
//! themselves. This one ends with its connection, or when a request finds that the member takes no more on
//! it: then the [upkeep](crate::upkeep) makes the next.

use std::sync::Arc;
use std::time::Duration;

use async_compat::CompatExt as _;
use dlock_core::spi::Host;
use dlock_core::{Result, Runtime};
use etcd_client::{Channel, Error as Etcd};
use futures::FutureExt as _;
use futures::channel::oneshot::{self, Receiver};
use hyper::Request;
use hyper::client::conn::http2;
use hyper::http::uri::{InvalidUri, Uri};
use hyper::rt::Executor;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
#[cfg(feature = "tls")]
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};
use tonic::Status;
use tonic::body::Body;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Service as _, service_fn};

use crate::failure::invalid;

#[cfg(feature = "tls")]
pub(crate) type Tls = (TlsConnector, ServerName<'static>);
#[cfg(not(feature = "tls"))]
type Tls = std::convert::Infallible;

/// Runs the tasks of a connection on the given runtime, with tokio around them.
#[derive(Clone)]
pub(crate) struct Tasks(pub(crate) Arc<dyn Runtime>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Tasks {
    fn execute(&self, task: F) {
        self.0.spawn(task.compat().boxed());
    }
}

/// How a member is reached.
pub(crate) struct Member {
    pub(crate) host: Host,
    origin: Uri,
    tls: Option<Tls>,
}

impl Member {
    pub(crate) fn new(host: &Host, tls: Option<Tls>) -> Result<Self> {
        let scheme = if tls.is_some() { "https" } else { "http" };
        let origin = format!("{scheme}://{host}").parse();
        let wrong = |e: InvalidUri| invalid(format!("the driver rejects the member {host}")).with_source(e);
        let (host, origin) = (host.clone(), origin.map_err(wrong)?);
        Ok(Self { host, origin, tls })
    }

    /// Connects to it. Also answers what is told when nothing can be asked any more.
    pub(crate) async fn channel(&self, limit: Duration, on: Tasks) -> Result<(Channel, Receiver<()>), Etcd> {
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(limit));
        let connected = connector.call(self.origin.clone()).await;
        let io = connected.map_err(failed)?.into_inner();
        match &self.tls {
            None => self.over(io, on).await,
            #[cfg(feature = "tls")]
            Some((tls, name)) => {
                let io = tls.connect(name.clone(), io).await.map_err(failed)?;
                if io.get_ref().1.alpn_protocol() != Some(b"h2") {
                    return Err(failed("it speaks TLS, and no HTTP/2"));
                }
                self.over(io, on).await
            }
            #[cfg(not(feature = "tls"))]
            Some(never) => match *never {},
        }
    }

    async fn over<T>(&self, io: T, on: Tasks) -> Result<(Channel, Receiver<()>), Etcd>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let begun = http2::handshake(on.clone(), TokioIo::new(io)).await;
        let (mut requests, connection) = begun.map_err(failed)?;
        let (alive, ended) = oneshot::channel();
        on.execute(connection.map(move |_| drop(alive)));
        let origin = self.origin.clone();
        let service = service_fn(move |mut request: Request<Body>| {
            let mut to = origin.clone().into_parts();
            to.path_and_query = request.uri().path_and_query().cloned();
            let answer = Uri::from_parts(to).map(|to| {
                *request.uri_mut() = to;
                requests.send_request(request)
            });
            async move { Ok::<_, BoxError>(answer?.await?.map(Body::new)) }
        });
        Ok((Channel::Custom(BoxCloneSyncService::new(service)), ended))
    }
}

/// As the driver tells it, with the cause.
fn failed(e: impl Into<BoxError>) -> Etcd {
    Status::from_error(e.into()).into()
}
