//! The HTTP/2 connection to a member.
//!
//! The driver's own channels hand each request to one more task, which takes 7 µs, and connect again by
//! themselves. This one ends with its connection, or when a request finds that the member takes no more on
//! it: then the [upkeep](crate::upkeep) makes the next.

use std::time::Duration;

use dlock_core::Result;
use dlock_core::spi::Host;
use etcd_client::{Channel, Error as Etcd};
use hyper::Request;
use hyper::client::conn::http2;
use hyper::http::uri::{InvalidUri, Uri};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinHandle;
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

type Driven = JoinHandle<hyper::Result<()>>;

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
        Ok(Self {
            host: host.clone(),
            origin: origin.map_err(wrong)?,
            tls,
        })
    }

    /// Connects to it. The task ends when nothing can be asked any more.
    pub(crate) async fn channel(&self, timeout: Duration) -> Result<(Channel, Driven), Etcd> {
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(timeout));
        let connected = connector.call(self.origin.clone()).await;
        let io = connected.map_err(failed)?.into_inner();
        match &self.tls {
            None => over(io, self.origin.clone()).await,
            #[cfg(feature = "tls")]
            Some((tls, name)) => {
                let io = tls.connect(name.clone(), io).await.map_err(failed)?;
                if io.get_ref().1.alpn_protocol() != Some(b"h2") {
                    return Err(failed("it speaks TLS, and no HTTP/2"));
                }
                over(io, self.origin.clone()).await
            }
            #[cfg(not(feature = "tls"))]
            Some(never) => match *never {},
        }
    }
}

async fn over(
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    origin: Uri,
) -> Result<(Channel, Driven), Etcd> {
    let begun = http2::handshake(TokioExecutor::new(), TokioIo::new(io)).await;
    let (mut requests, connection) = begun.map_err(failed)?;
    let driven = tokio::spawn(connection);
    let service = service_fn(move |mut request: Request<Body>| {
        let mut to = origin.clone().into_parts();
        to.path_and_query = request.uri().path_and_query().cloned();
        let answer = Uri::from_parts(to).map(|to| {
            *request.uri_mut() = to;
            requests.send_request(request)
        });
        async move { Ok::<_, BoxError>(answer?.await?.map(Body::new)) }
    });
    Ok((Channel::Custom(BoxCloneSyncService::new(service)), driven))
}

/// As the driver tells it, with the cause.
fn failed(e: impl Into<BoxError>) -> Etcd {
    Status::from_error(e.into()).into()
}
