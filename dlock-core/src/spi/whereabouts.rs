//! Where a client is.

/// For backends: this machine and process, for operators, as in `host=web-1 pid=4711`. Each part is one word.
pub fn whereabouts() -> String {
    #[cfg(not(any(windows, target_os = "wasi")))]
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    #[cfg(any(windows, target_os = "wasi"))]
    let host = std::env::var("COMPUTERNAME").unwrap_or_default();
    let is_plain = |c: &char| c.is_ascii_graphic() && *c != '=';
    let host: String = host.chars().filter(is_plain).take(64).collect();
    format!("host={host} pid={}", std::process::id())
}
