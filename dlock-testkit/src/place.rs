//! Where the servers of this process keep their files, and who clears that up.
//!
//! A folder for each server, in one of the process. A server that is dropped removes its own. A test program
//! that is killed drops nothing, so a janitor waits beside it: a shell that reads from a pipe which only this
//! process can write to. The read ends when the process does, in whatever way, since then the kernel closes
//! its files; then the janitor removes the folder of the process.
//!
//! They are in memory where there is enough of it. A server that has each write on the disk before it
//! answers, as the tests have Redis do it, answers as late as that disk is busy with the writes of others,
//! and then leases of a second are over for a reason that no test asks about. What a server keeps when it is
//! killed is kept there as well; that a machine loses its power is nothing that a test can bring about.

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::SystemTime;

use crate::process::{give_to, run};

/// The folder of this process, with the pipe to its janitor.
struct Root {
    folder: PathBuf,
    _open: ChildStdin,
}

static ROOT: Mutex<Option<Root>> = Mutex::new(None);
/// For what is executed: from memory it often may not be.
static PROGRAMS: Mutex<Option<Root>> = Mutex::new(None);
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// A PostgreSQL that was killed leaves a piece of shared memory, whose number is the last word of a line in
/// its folder. Then the folders: more than one try, since a server that was just killed may be writing still.
const SWEEP: &str = r#"cat >/dev/null
for f in \
    "$0"/*/data/postmaster.pid; do set -- $(sed -n 7p "$f" 2>/dev/null); [ -z "$2" ] || ipcrm -m "$2"; done
for n in 1 2 3 4 5; do rm -rf -- "$0" && exit; sleep 0.2; done"#;

/// As much as all servers of the largest test program need at a time, with room.
const ENOUGH: u64 = 4 << 30;

/// Where temporary folders are made: in memory where that is large enough, unless this variable says where.
pub fn temporary() -> PathBuf {
    if let Some(chosen) = std::env::var_os("DLOCK_TEST_FOLDER") {
        return chosen.into();
    }
    let memory = PathBuf::from("/dev/shm");
    match rustix::fs::statvfs(&memory) {
        Ok(about) if about.f_bavail.saturating_mul(about.f_frsize) >= ENOUGH => memory,
        _ => std::env::temp_dir(),
    }
}

impl Root {
    fn new(base: &Path) -> io::Result<Self> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let name = format!(
            "dlock-servers-{}-{:x}",
            std::process::id(),
            now.map_or(0, |d| d.as_nanos())
        );
        let folder = base.join(name);
        // To be entered by others too: some servers refuse to run as root, and get a user of their own. Fails
        // if it is there already.
        DirBuilder::new().mode(0o755).create(&folder)?;
        let mut janitor = Command::new("sh")
            .args(["-c", SWEEP])
            .arg(&folder)
            .current_dir("/")
            .stdin(Stdio::piped())
            // Not those of the test: a reader waits until all ends are closed.
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // An interrupt from the keyboard is for the test, and not for who clears up after it.
            .process_group(0)
            .spawn()?;
        let open = janitor.stdin.take();
        let open = open.ok_or_else(|| io::Error::other("the janitor has no pipe"))?;
        Ok(Self { folder, _open: open })
    }
}

/// A folder that is removed when this is dropped.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// A new one, in the folder of this process.
    pub fn new(what: &str) -> io::Result<Self> {
        Self::within(&ROOT, temporary, what)
    }

    /// One for what is executed.
    pub fn of_programs(what: &str) -> io::Result<Self> {
        Self::within(&PROGRAMS, std::env::temp_dir, what)
    }

    fn within(root: &Mutex<Option<Root>>, base: fn() -> PathBuf, what: &str) -> io::Result<Self> {
        let mut root = root
            .lock()
            .map_err(|_| io::Error::other("no folder could be made"))?;
        let root = match &mut *root {
            Some(root) => root,
            none => none.insert(Root::new(&base())?),
        };
        let name = format!("{what}-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let folder = root.folder.join(name);
        DirBuilder::new().mode(0o755).create(&folder)?;
        Ok(Self(folder))
    }

    /// Its folder `data`, of that user, with what `make` makes in the first folder of that kind. That is
    /// copied for the others, which takes a tenth of the time.
    pub(crate) fn data(
        &self,
        kind: &'static str,
        user: &str,
        make: impl FnOnce(&Self) -> io::Result<()>,
    ) -> io::Result<PathBuf> {
        static MADE: Mutex<BTreeMap<&str, Folder>> = Mutex::new(BTreeMap::new());
        let mut made = MADE
            .lock()
            .map_err(|_| io::Error::other("no data could be made"))?;
        if !made.contains_key(kind) {
            let folder = Self::new(kind)?;
            folder.empty("data", user)?;
            make(&folder)?;
            made.insert(kind, folder);
        }
        run(Command::new("cp")
            .arg("-a")
            .arg(made[kind].file("data"))
            .arg(&self.0))?;
        Ok(self.file("data"))
    }

    /// A new folder in it, of that user.
    pub(crate) fn empty(&self, name: &str, user: &str) -> io::Result<PathBuf> {
        let folder = self.file(name);
        std::fs::create_dir(&folder)?;
        give_to(user, &folder)?;
        Ok(folder)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed now the janitor will.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
