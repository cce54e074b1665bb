//! The Java process.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dlock_testkit::{Folder, JARS_FOLDER, Process, missing, until};

const SOURCE: &str = include_str!("Worker.java");

const JARS: [&str; 9] = [
    "curator-recipes",
    "curator-framework",
    "curator-client",
    "zookeeper",
    "zookeeper-jute",
    "netty-codec",
    "netty-resolver",
    "guava",
    "slf4j-simple",
];

/// A service with Curator, killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Worker(Process);

impl Worker {
    /// Starts it; see its source for what a task is. Behind the servers there may be a path below which
    /// everything is; it must be there.
    pub(crate) fn start(servers: &str, mutex: &str, session: Duration, task: &str) -> io::Result<Self> {
        let files = JARS.map(|jar| Path::new(JARS_FOLDER).join(format!("{jar}.jar")));
        if let Some(file) = files.iter().find(|file| !file.is_file()) {
            return Err(missing(file));
        }
        let path = std::env::join_paths(files).map_err(io::Error::other)?;
        let folder = Folder::new("curator")?;
        let source = folder.file("Worker.java");
        std::fs::write(&source, SOURCE)?;
        let mut words: Vec<OsString> = [
            "-Xmx128m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-cp",
        ]
        .map(OsString::from)
        .into();
        // From the source: it is compiled on the way.
        words.extend([path, source.into()]);
        words.extend(
            [
                servers.to_owned(),
                mutex.to_owned(),
                session.as_millis().to_string(),
            ]
            .map(OsString::from),
        );
        words.extend([folder.path().into(), task.into()]);
        let process = Process::new("a service with Curator", folder, "java", &[], &words)?;
        process.start()?;
        Ok(Self(process))
    }

    /// A file in its folder.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.folder().file(name)
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// If it has not within the limit, or not well; with its log.
    pub(crate) fn wait(&self, limit: Duration) -> io::Result<()> {
        let mut status = None;
        until("it ends", limit, || {
            status = self.0.ended()?;
            Ok(status.is_some())
        })
        .map_err(|e| self.0.trouble(e))?;
        match status {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(self.0.trouble(status)),
            None => Err(self.0.trouble("it did not end")),
        }
    }
}
