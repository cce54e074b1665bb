//! The holders of a lock, and how a hold ended, from the keys beside its queue.
//!
//! *How a hold ended* does not show in its entry. A release by force writes a key in the same revision. When
//! a lease ends, its client's mark goes in the same revision; for other programs the lease is looked up.
//! Everything else is a release. The member that reported a revision is asked for its local state, so that a
//! watcher keeps up with fast hand-offs.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::spi::InLine as _;
use dlock_core::{Change, Error, ErrorKind, Holder, LockName, RequestId, Result};
use etcd_client::GetOptions;
use futures::future::{try_join, try_join3};
use futures::stream;
use futures::{StreamExt as _, TryStreamExt as _};

use crate::line::Entry;
use crate::lock::EtcdLock;
use crate::session::Session;

/// How many holders are asked for at a time.
const AT_ONCE: usize = 100;

/// How long a client's lease lives unless it is renewed, and where the client is.
type Client = (Duration, Option<Arc<str>>);

/// A request, and its label.
type Owner<'a> = (RequestId, Option<&'a str>);

impl EtcdLock {
    async fn client(&self, session: &Session, entry: &Entry) -> Result<Client> {
        if entry.lease == session.lease {
            let ends = session.deadline.confirmed() + session.deadline.span();
            let whereabouts = self.connection.settings.whereabouts.clone();
            return Ok((session.now().until(ends), Some(whereabouts)));
        }
        let key = self.keys().session(entry.lease);
        // The member has shown the entry, so it knows of the mark that was made before.
        let mark = session.get_by_itself(key, GetOptions::new()).await?;
        let mark = mark.kvs().first().and_then(|kv| kv.value_str().ok());
        let read = mark.and_then(|mark| mark.strip_prefix("ttl=")?.split_once(' '));
        Ok(match read {
            // It may be heard of at any moment; this is what it has then.
            Some((ttl, at)) => (Duration::from_secs(ttl.parse().unwrap_or(0)), Some(at.into())),
            None => (self.left(session, entry.lease).await?.unwrap_or_default(), None),
        })
    }

    /// How long that lease has yet; `None` if it is not there any more.
    async fn left(&self, session: &Session, lease: i64) -> Result<Option<Duration>> {
        let (link, _) = session.link()?;
        let mut leases = link.client.lease_client();
        let answer = link.answer(pin!(leases.time_to_live(lease, None))).await;
        let answer = answer.map_err(|e| self.connection.settings.told(e))?;
        Ok(u64::try_from(answer.ttl()).ok().map(Duration::from_secs))
    }

    /// Whose an entry is that was there in that revision, and its label.
    async fn owner<'a>(&self, session: &Session, entry: &'a Entry, at: i64) -> Result<Owner<'a>> {
        let label = str::from_utf8(&entry.value).ok().filter(|l| !l.is_empty());
        if !entry.is_ours {
            // It has its lease and nothing else.
            return Ok((RequestId::new(entry.lease.cast_unsigned().into(), 0), label));
        }
        let name = entry.key.rsplit(|b| *b == b'/').next().unwrap_or_default();
        let key = self.keys().request(&String::from_utf8_lossy(name));
        let read = session.get_at(key, at).await?;
        let of_it = read.kvs().iter().find(|kv| kv.mod_revision() == entry.revision);
        let (text, label) = match of_it {
            Some(kv) => (kv.value(), label),
            None => (&*entry.value, None),
        };
        let id = str::from_utf8(text).ok().and_then(RequestId::parse);
        let id = id.ok_or_else(|| no_request(entry))?;
        Ok((id, label))
    }

    /// The holders that have these entries, in that revision.
    pub(crate) async fn holders(
        &self,
        session: &Session,
        entries: impl IntoIterator<Item = &Entry>,
        at: i64,
    ) -> Result<Vec<Holder>> {
        let holders = entries.into_iter().map(|entry| async move {
            let (client, owner) = (self.client(session, entry), self.owner(session, entry, at));
            let ((expires_in, whereabouts), (id, label)) = try_join(client, owner).await?;
            let holder = Holder::new(id, entry.mode(), entry.token(), expires_in);
            let holder = holder.with_owner(label.map(Into::into));
            Ok(holder.with_whereabouts(whereabouts))
        });
        let holders: Vec<_> = holders.collect();
        stream::iter(holders).buffered(AT_ONCE).try_collect().await
    }

    /// How the holders ended that had these entries, in that revision.
    pub(crate) async fn endings(
        &self,
        session: &Session,
        name: &LockName,
        entries: impl IntoIterator<Item = &Entry>,
        at: i64,
    ) -> Result<Vec<Change>> {
        let ended = entries.into_iter().map(|e| self.ending(session, name, e, at));
        let ended: Vec<_> = ended.collect();
        stream::iter(ended).buffered(AT_ONCE).try_collect().await
    }

    async fn ending(&self, session: &Session, name: &LockName, entry: &Entry, at: i64) -> Result<Change> {
        let (forced, mark) = (self.keys().forced(name), self.keys().session(entry.lease));
        let (forced, mark, (id, _)) = try_join3(
            session.get_at(forced, at),
            session.get_at(mark, at),
            self.owner(session, entry, at - 1),
        )
        .await?;
        if forced.kvs().first().is_some_and(|kv| kv.mod_revision() == at) {
            return Ok(Change::Forced { id });
        }
        let is_there = match entry.is_ours {
            true => !mark.kvs().is_empty(),
            false => self.left(session, entry.lease).await?.is_some(),
        };
        Ok(match is_there {
            true => Change::Released { id },
            false => Change::Expired { id },
        })
    }
}

fn no_request(entry: &Entry) -> Error {
    let key = entry.key.escape_ascii();
    let message = format!("the key `{key}` in etcd names no request: delete it, or use another prefix");
    Error::new(ErrorKind::BackendData, message)
}
