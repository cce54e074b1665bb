//! The signal to end.

use std::io;

/// Completes when this process is asked to end: by Ctrl-C, or by the TERM that Kubernetes and systemd send.
///
/// # Errors
/// If no handler can be installed.
#[cfg(unix)]
pub async fn requested() -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut term = signal(SignalKind::terminate())?;
    tokio::select! {
        pressed = tokio::signal::ctrl_c() => pressed,
        _ = term.recv() => Ok(()),
    }
}

/// Completes when this process is asked to end, by Ctrl-C.
///
/// # Errors
/// If no handler can be installed.
#[cfg(not(unix))]
pub async fn requested() -> io::Result<()> {
    tokio::signal::ctrl_c().await
}
