//! Certificates for servers with TLS, made once for each test program.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use crate::place::Folder;

/// An authority, and what it has signed: for `localhost` and 127.0.0.1, and for clients. In PEM; elliptic
/// curves, which are made in no time.
#[derive(Debug)]
pub struct Certificates(Folder);

const SERVER: &str = "\
subjectAltName=DNS:localhost,IP:127.0.0.1
basicConstraints=critical,CA:FALSE
extendedKeyUsage=serverAuth
";
const CLIENT: &str = "basicConstraints=critical,CA:FALSE\nextendedKeyUsage=clientAuth\n";

impl Certificates {
    /// The certificates of this program. They are deleted with their last user.
    pub fn of_this_program() -> io::Result<Arc<Self>> {
        static MADE: Mutex<std::sync::Weak<Certificates>> = Mutex::new(std::sync::Weak::new());
        let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(there) = made.upgrade() {
            return Ok(there);
        }
        let new = Arc::new(Self::new()?);
        *made = Arc::downgrade(&new);
        Ok(new)
    }

    /// Other certificates, of an authority that is not trusted yet.
    pub fn new() -> io::Result<Self> {
        let made = Self(Folder::new("certificates")?);
        made.openssl(
            &[
                "req",
                "-x509",
                "-days",
                "30",
                "-subj",
                "/CN=dlock tests",
                "-keyout",
                "ca.key",
                "-out",
                "ca.crt",
                "-addext",
                "basicConstraints=critical,CA:TRUE",
                "-addext",
                "keyUsage=critical,keyCertSign,cRLSign",
            ],
            true,
        )?;
        made.sign("server", "/CN=localhost", SERVER)?;
        made.sign("client", "/CN=a client", CLIENT)?;
        Ok(made)
    }

    fn sign(&self, whose: &str, subject: &str, extensions: &str) -> io::Result<()> {
        let [key, request, certificate, file] =
            ["key", "csr", "crt", "ext"].map(|end| format!("{whose}.{end}"));
        std::fs::write(self.0.file(&file), extensions)?;
        self.openssl(
            &["req", "-subj", subject, "-keyout", &key, "-out", &request],
            true,
        )?;
        self.openssl(
            &[
                "x509",
                "-req",
                "-in",
                &request,
                "-CA",
                "ca.crt",
                "-CAkey",
                "ca.key",
                "-CAcreateserial",
                "-days",
                "30",
                "-extfile",
                &file,
                "-out",
                &certificate,
            ],
            false,
        )
    }

    fn openssl(&self, words: &[&str], new_key: bool) -> io::Result<()> {
        let mut command = Command::new("openssl");
        command
            .args(words)
            .current_dir(self.0.path())
            .stdin(Stdio::null());
        if new_key {
            command.args([
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
            ]);
        }
        let done = command.output().map_err(|e| {
            io::Error::new(
                e.kind(),
                format!("openssl: {e}; scripts/services installs what the tests need"),
            )
        })?;
        if done.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&done.stderr);
        Err(io::Error::other(format!("openssl {}: {said}", words.join(" "))))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.file(name)
    }

    /// The certificates to trust.
    pub fn authority(&self) -> PathBuf {
        self.file("ca.crt")
    }

    /// The server's certificate and its key.
    pub fn server(&self) -> (PathBuf, PathBuf) {
        (self.file("server.crt"), self.file("server.key"))
    }

    /// A client's certificate and its key, for servers that want one.
    pub fn client(&self) -> (PathBuf, PathBuf) {
        (self.file("client.crt"), self.file("client.key"))
    }

    pub fn folder(&self) -> &Path {
        self.0.path()
    }
}
