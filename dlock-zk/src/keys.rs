//! The paths of nodes. Names of any bytes become parts of paths, different ones for different names.
//!
//! Characters that a server, `zkCli` and other tools take without quotes stay; every other byte becomes `%`
//! and two hexadecimal digits. That includes `%` itself, so the encoding is unambiguous. A `.` at the
//! beginning becomes `%2E`: `.` and `..` are no names in ZooKeeper.

use crate::failure::invalid;
use crate::layout::Layout;
use dlock_core::RequestId;
use dlock_core::{LockName, Result};

/// The paths of one client.
#[derive(Clone, Debug)]
pub(crate) struct Paths {
    pub(crate) layout: Layout,
    pub(crate) unfair: bool,
    /// The directory of the locks; empty for the root itself.
    pub(crate) locks: String,
    /// Whatever is no lock.
    ours: String,
}

impl Paths {
    pub(crate) fn new(chroot: &str, root: &str, layout: Layout, unfair: bool) -> Self {
        let root = format!("{chroot}{root}");
        let (locks, ours) = match layout {
            Layout::Own if unfair => (format!("{root}/unfair"), root),
            Layout::Own => (format!("{root}/locks"), root),
            // In there, anything may be the name of a lock.
            Layout::Curator => (root, format!("{chroot}/dlock")),
        };
        Self {
            layout,
            unfair,
            locks,
            ours,
        }
    }

    /// The line of that lock, or its only node.
    pub(crate) fn lock(&self, name: &LockName) -> String {
        format!("{}/{}", self.locks, encode(name))
    }

    /// Where everything else is.
    pub(crate) fn ours(&self) -> &str {
        match self.ours.is_empty() {
            true => "/",
            false => &self.ours,
        }
    }

    /// Where there is a node for each holder of an unfair lock.
    pub(crate) fn holders(&self) -> String {
        format!("{}/holders", self.ours)
    }

    pub(crate) fn holder(&self, id: RequestId) -> String {
        format!("{}/{id}", self.holders())
    }

    /// Where all resources are that are fenced.
    pub(crate) fn fences(&self) -> String {
        format!("{}/fence", self.ours)
    }

    pub(crate) fn fence(&self, resource: &LockName) -> String {
        format!("{}/{}", self.fences(), encode(resource))
    }

    /// Where there is a node for each session.
    pub(crate) fn sessions(&self) -> String {
        format!("{}/sessions", self.ours)
    }

    pub(crate) fn session(&self, id: i64) -> String {
        format!("{}/{id:016x}", self.sessions())
    }

    /// In it stands which locks were last ended by force.
    pub(crate) fn forced(&self) -> String {
        format!("{}/forced", self.ours)
    }
}

fn encode(name: &LockName) -> String {
    let part = name.to_path_part();
    match &*part {
        // Nothing may be below it in the root.
        "zookeeper" => "%7Aookeeper".to_owned(),
        _ => part,
    }
}

/// The name that stands in a part of a path, if we have written it.
pub(crate) fn decode(part: &str) -> Option<LockName> {
    let name = LockName::from_path_part(part)?;
    (encode(&name) == part).then_some(name)
}

/// Whether that is a path as ZooKeeper has them: absolute, or empty, and nothing in it that a server refuses
/// or that a terminal would act on.
pub(crate) fn check_path(path: &str, what: &'static str) -> Result<()> {
    let fits = |part: &str| !part.is_empty() && part != "." && part != ".." && !part.chars().any(is_refused);
    let is_path = match path.strip_prefix('/') {
        None => path.is_empty(),
        Some(rest) => rest.split('/').all(fits),
    };
    match is_path && path.split('/').nth(1) != Some("zookeeper") && path.len() <= 512 {
        true => Ok(()),
        false => Err(invalid(format!(
            "{what} must be empty or an absolute path of 512 bytes at most, without empty parts, `.`, `..` \
             and control characters, and not below `/zookeeper`"
        ))),
    }
}

/// What ZooKeeper takes in no path.
fn is_refused(c: char) -> bool {
    c.is_control() || ('\u{e000}'..='\u{f8ff}').contains(&c) || ('\u{fff0}'..='\u{ffff}').contains(&c)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(bytes: impl AsRef<[u8]>) -> LockName {
        LockName::new(bytes).unwrap()
    }

    #[test]
    fn no_two_names_have_one_path() {
        for text in ["zookeeper", "%7Aookeeper", ".", "a/b"] {
            let path = encode(&name(text));
            assert_eq!(decode(&path), Some(name(text)), "{path}");
        }
        assert_eq!(encode(&name("zookeeper")), "%7Aookeeper");
        for foreign in ["zookeeper", "a%2fb", ".", "%"] {
            assert_eq!(decode(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn a_path_is_one_that_a_server_takes() {
        let long = "/a".repeat(256);
        for path in ["", "/a", "/a/zookeeper", "/a.b/..c", &long] {
            check_path(path, "it").unwrap();
        }
        let refused = [
            "a",
            "/",
            "/a/",
            "//a",
            "/.",
            "/a/..",
            "/zookeeper",
            "/zookeeper/a",
            "/\u{1}",
            "/\u{e000}",
            "/\u{ffff}",
            &format!("{long}a"),
        ];
        for path in refused {
            assert!(check_path(path, "it").is_err(), "{path:?}");
        }
    }

    #[test]
    fn plain_names_are_seen_as_they_are() {
        let own = Paths::new("/app", "/dlock", Layout::Own, false);
        let path = own.lock(&name("orders-42.eu_1~a"));
        assert_eq!(path, "/app/dlock/locks/orders-42.eu_1~a");
        let curator = Paths::new("", "/locks", Layout::Curator, false);
        assert_eq!(curator.lock(&name("orders")), "/locks/orders");
        assert_eq!(curator.fence(&name("orders")), "/dlock/fence/orders");
    }
}
