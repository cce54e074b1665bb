//! One request on a connection.

use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, RedisResult, ServerErrorKind, Value};

use crate::scripts::Script;

/// Asks. A server that does not have the script, since it was told to forget all or was restarted, is given
/// it first.
pub(crate) async fn ask(
    connection: &mut MultiplexedConnection,
    command: &Cmd,
    script: Option<&Script>,
) -> RedisResult<Value> {
    let answer = command.query_async(connection).await;
    match (answer, script) {
        (Err(e), Some(script)) if e.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
            script.load().exec_async(connection).await?;
            command.query_async(connection).await
        }
        (answer, _) => answer,
    }
}
