//! Making a session.

use std::sync::{Arc, RwLock};
use std::time::Duration;

use dlock_core::spi::whereabouts;
use dlock_core::{Error, ErrorKind, Result, Runtime};
use futures::FutureExt as _;
use futures::channel::oneshot;
use futures::future::{Either, select};
use zookeeper_client::{Client, Connector, CreateMode, Error as Zk, StateWatcher};

use crate::access::Rights;
use crate::deadline::Deadline;
use crate::failure::told;
use crate::keys::Paths;
use crate::ping::Pings;
use crate::requests::Requests;
use crate::session::{Mark, Session};

/// What takes longer to fail, for each time that a server is asked, was no refusal.
const SLOW: Duration = Duration::from_millis(200);

/// A configuration that was checked.
pub(crate) struct Settings {
    pub(crate) paths: Paths,
    pub(crate) rights: Rights,
    /// For messages.
    pub(crate) at: Arc<str>,
    /// As the driver takes it.
    pub(crate) servers: String,
    pub(crate) session_timeout: Duration,
    pub(crate) timeout: Duration,
    pub(crate) login: Option<(String, String)>,
    #[cfg(feature = "sasl")]
    pub(crate) sasl: Option<(String, String)>,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<zookeeper_client::TlsOptions>,
}

/// Makes a session. The driver spawns on the runtime that is current, so it is connected in a task of the one
/// that was given.
pub(crate) async fn connect(
    settings: &Settings,
    runtime: &Arc<dyn Runtime>,
) -> Result<(Session, StateWatcher)> {
    let connector = settings.connector();
    let servers = settings.servers.clone();
    let (mut send, receive) = oneshot::channel();
    let asked = runtime.now();
    let on = runtime.clone();
    let connecting = async move {
        let connected = {
            let asking = std::pin::pin!(ask_servers(&connector, &servers, &*on));
            match select(asking, send.cancellation()).await {
                Either::Left((connected, _)) => connected,
                Either::Right(_) => return,
            }
        };
        // If the caller has gone it is dropped, and so closed.
        let _ = send.send(connected);
    };
    runtime.spawn(connecting.boxed());
    let told = |e| told(e, ErrorKind::Unavailable, &settings.at);
    let made = async {
        let Ok(connected) = receive.await else {
            // The task was dropped: its runtime has ended.
            let message = "the runtime of this client has been shut down";
            return Err(Error::new(ErrorKind::Unavailable, message));
        };
        let client = connected.map_err(told)?;
        let states = client.state_watcher();
        let mark = mark(settings, &client).await.map_err(told)?;
        let (at, timeout) = (settings.at.clone(), client.session_timeout());
        let session = Session {
            id: client.session_id().0,
            timeout,
            deadline: Arc::new(Deadline::new(asked, timeout)),
            client: RwLock::new(Some(Arc::new(client))),
            runtime: runtime.clone(),
            requests: Arc::new(Requests::new(at.clone())),
            at,
            pings: Pings::default(),
            watches: Arc::default(),
            mark: Arc::new(mark),
            root: settings.paths.ours().to_owned(),
        };
        Ok((session, states))
    };
    match select(std::pin::pin!(made), runtime.sleep(settings.timeout)).await {
        Either::Left((made, _)) => made,
        // With it goes the session, if there is one by now.
        Either::Right(_) => Err(told(Zk::Timeout)),
    }
}

/// Asks each server as often as it is named in [`Settings::servers`], and all again if they do not refuse,
/// but take long.
async fn ask_servers(connector: &Connector, servers: &str, runtime: &dyn Runtime) -> Result<Client, Zk> {
    let slow = SLOW * servers.split(',').count() as u32;
    loop {
        let from = runtime.now();
        match connector.clone().connect(servers).await {
            Err(Zk::NoHosts) if runtime.now().since(from) >= slow => {}
            connected => return connected,
        }
    }
}

/// Makes the node that shows whether the session is there, which operators can read as well. What is in the
/// way of a lock is in its way, too, and so is said at once.
async fn mark(settings: &Settings, client: &Client) -> Result<Mark, Zk> {
    let paths = &settings.paths;
    let path = paths.session(client.session_id().0);
    let options = settings.rights.node(CreateMode::Ephemeral);
    let data = format!("dlock {}", whereabouts()).into_bytes();
    for _ in 0..2 {
        match client.create(&path, &data, &options).await {
            Ok(_) | Err(Zk::NodeExists) => {
                // What a renewal does: an access list that does not allow it is found out here, and not by
                // losing locks.
                client.set_data(&path, &data, None).await?;
                return Ok(Mark { path, data });
            }
            Err(Zk::NoNode) => {
                let options = settings.rights.node(CreateMode::Persistent);
                client.mkdir(&paths.sessions(), &options).await?;
            }
            Err(e) => return Err(e),
        }
    }
    Err(Zk::NoNode)
}

impl Settings {
    fn connector(&self) -> Connector {
        let connector = Client::connector()
            .with_session_timeout(self.session_timeout)
            .with_fail_eagerly();
        #[cfg(feature = "tls")]
        let connector = match &self.tls {
            Some(tls) => connector.with_tls(tls.clone()),
            None => connector,
        };
        #[cfg(feature = "sasl")]
        if let Some((user, password)) = &self.sasl {
            let login = zookeeper_client::SaslOptions::digest_md5(user.clone(), password.clone());
            return connector.with_sasl(login);
        }
        match &self.login {
            Some((user, password)) => connector.with_auth("digest", format!("{user}:{password}").as_bytes()),
            None => connector,
        }
    }
}
