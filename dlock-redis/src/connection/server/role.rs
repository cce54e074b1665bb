//! What a connection is for, and how it listens.

#[cfg(feature = "cluster")]
use std::sync::Arc;

use redis::RedisResult;
use redis::aio::MultiplexedConnection;

/// What a connection is for.
pub(crate) enum Role {
    /// Whatever there is.
    Everything,
    /// To ask on. Nothing is listened to.
    #[cfg(feature = "cluster")]
    Commands,
    /// To listen on, at a node of a cluster: channels are those of its slots. `moved` is told of one that is
    /// not heard there any more.
    #[cfg(feature = "cluster")]
    Ears { moved: Moved },
}

#[cfg(feature = "cluster")]
pub(crate) type Moved = Arc<dyn Fn(&[u8]) + Send + Sync>;

impl Role {
    #[cfg(feature = "cluster")]
    pub(super) fn moved(&self) -> Option<&Moved> {
        match self {
            Self::Ears { moved } => Some(moved),
            _ => None,
        }
    }

    pub(super) async fn subscribe(
        &self,
        connection: &mut MultiplexedConnection,
        channel: &[u8],
    ) -> RedisResult<()> {
        match self {
            #[cfg(feature = "cluster")]
            Self::Ears { .. } => redis::cmd("SSUBSCRIBE").arg(channel).exec_async(connection).await,
            _ => connection.subscribe(channel).await,
        }
    }

    pub(super) async fn unsubscribe(
        &self,
        connection: &mut MultiplexedConnection,
        channel: &[u8],
    ) -> RedisResult<()> {
        match self {
            #[cfg(feature = "cluster")]
            Self::Ears { .. } => {
                redis::cmd("SUNSUBSCRIBE")
                    .arg(channel)
                    .exec_async(connection)
                    .await
            }
            _ => connection.unsubscribe(channel).await,
        }
    }
}
