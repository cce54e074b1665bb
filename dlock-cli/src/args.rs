//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};
use clap_complete::Shell;

const CODES: &str = "\
Exit codes: that of the command, or 128 and the number of the signal that ended it. Of dlock itself:
  120  the lock was lost while the command ran, and the command was ended
  121  the store cannot be reached, or what became of a request is not known
  122  the store refuses: a right is missing, it cannot do that, or a limit is reached
  123  dlock doctor has found a problem
  124  the lock was not to be had, or not in the time that was given
  125  the command line, the configuration or the name is wrong
  126  the command cannot be started
  127  the command was not found";

const STORES: &str = "\
The store is the URL of --url, else of DLOCK_URL, else of `url` in ~/.config/dlock.toml or /etc/dlock.toml.
Without any it is a SQLite file of the user: enough for the processes of one user on one machine.
  redis://host  rediss://host  redis+sentinel://a,b,c/master  redis+cluster://a,b
  postgres://user@host/database  mysql://user@host/database  zk://a,b,c  sqlite:///path/to/file
  etcd://a,b,c (in a build with the feature `etcd`)
A password stands in the URL, or in the file of --password-file (DLOCK_PASSWORD_FILE, `password_file`).";

const EXAMPLES: &str = "\
Examples:
  dlock run backup -- ./backup                     one at a time; wait for the one that runs
  dlock run --try backup -- ./backup               or leave it, with 124
  dlock run --wait 30s --ttl 10s deploy -- make deploy
  dlock run --permits 3 encode -- ffmpeg …         three at a time
  dlock elect scheduler -- ./scheduler             where this host leads
  dlock status backup                              who holds it
  dlock ls --long jobs/                            and every lock of a name that begins so
  dlock --url redis://db.example watch backup      and how that changes
  dlock --url redis://db.example doctor            whether that store is fit for locks
  dlock --url redis://db.example bench             and what locks cost there";

/// Runs commands under distributed locks, and shows who holds them.
#[derive(Debug, Parser)]
#[command(name = "dlock", version)]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{STORES}\n\n{CODES}"))]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) store: Store,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Store {
    /// Where the locks are: the URL of a store
    #[arg(long, env = "DLOCK_URL", hide_env_values = true, global = true)]
    pub(crate) url: Option<String>,
    /// A file with the password for that URL, in its first line
    #[arg(long, env = "DLOCK_PASSWORD_FILE", value_name = "FILE", global = true)]
    pub(crate) password_file: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    #[command(after_long_help = CODES)]
    Run(Run),
    #[command(after_long_help = CODES)]
    Elect(Elect),
    /// Show who holds a lock
    Status(Status),
    /// List the locks that are held or waited for
    Ls(Ls),
    /// Show how the holders of a lock change, until stopped
    Watch(Watch),
    /// End a hold of somebody else
    Release(Release),
    #[command(after_long_help = CODES)]
    Doctor(Doctor),
    Bench(Bench),
    /// Print the completions for a shell
    Completions {
        /// Which shell
        shell: Shell,
    },
    /// Write the manual pages into a folder
    Man {
        /// The folder
        folder: PathBuf,
    },
}

/// How a lock is held while a command runs.
#[derive(Debug, clap::Args)]
pub(crate) struct Hold {
    /// For how long the lock stays taken after this host has vanished
    ///
    /// While all is well it is renewed long before. What is longer than this without an answer of the store
    /// loses the lock, and ends the command. In ZooKeeper and etcd, and in databases with
    /// `strategy=session`, it is the session that counts: `session_timeout`, or `session_ttl`, in the URL.
    #[arg(long, default_value = "30s", value_parser = humantime::parse_duration)]
    pub(crate) ttl: Duration,
    /// How long the command has between TERM and KILL, a third of the ttl at most [default: a sixth of the
    /// ttl, 10s at most]
    ///
    /// If the lock cannot be renewed, TERM comes that long before others may have it, and KILL just before.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) kill_after: Option<Duration>,
    /// What others are shown of the holder [default: this host and process]
    #[arg(long)]
    pub(crate) label: Option<String>,
}

/// Take a lock, run a command, release the lock
///
/// The command runs in a process group of its own. If the lock is lost, the whole group is ended before
/// others may have the lock; so it is when this program is killed or stopped. When the command ends, what it
/// has left in the background is ended too. TERM, INT, HUP, QUIT, USR1 and USR2 are passed on to the group.
///
/// The command finds in its environment: DLOCK_NAME, the name of the lock; DLOCK_TOKEN, the fencing token,
/// where the store gives one; DLOCK_URL, the store without passwords.
#[derive(Debug, clap::Args)]
pub(crate) struct Run {
    /// Do not wait: end with 124 if somebody has the lock
    #[arg(long = "try", conflicts_with = "wait")]
    pub(crate) once: bool,
    /// Wait so long at most [default: for ever]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) wait: Option<Duration>,
    /// Keep the lock at least for so long, though the command ends sooner: for a short job on hosts whose
    /// clocks differ. At most the ttl
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) at_least: Option<Duration>,
    /// Share it with others who say this, and with nobody else
    #[arg(long, conflicts_with = "permits")]
    pub(crate) shared: bool,
    /// Share it with others, N at a time; all have to say the same N
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) permits: Option<u32>,
    #[command(flatten)]
    pub(crate) hold: Hold,
    /// The name of the lock
    pub(crate) name: String,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// Run a command where this host leads
///
/// Of all hosts that do this with one name, one leads. When it vanishes another one does, after the ttl. If
/// the command ends, so does this, with its exit code; if the leadership is lost, the command is ended, and
/// started again when this host leads again.
#[derive(Debug, clap::Args)]
pub(crate) struct Elect {
    /// What others are told of the leader: its address, say [default: this host and process]
    #[arg(long, conflicts_with = "label")]
    pub(crate) value: Option<String>,
    /// Start the command again when it ends, whatever its exit code, as long as this host leads
    #[arg(long)]
    pub(crate) restart: bool,
    #[command(flatten)]
    pub(crate) hold: Hold,
    /// The name of the election
    pub(crate) name: String,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Status {
    /// One JSON object: name, waiting, holders (id, mode, token, expires_in_ms, owner, whereabouts)
    #[arg(long)]
    pub(crate) json: bool,
    /// The name of the lock
    pub(crate) name: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Ls {
    /// Show who holds each of them
    #[arg(long, short)]
    pub(crate) long: bool,
    /// One JSON object a line: name; with --long also waiting and holders, as of status
    #[arg(long)]
    pub(crate) json: bool,
    /// Those alone whose names begin so
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Watch {
    /// One JSON object a line: event (snapshot, granted, released, expired, forced), with id and holder, or
    /// with holders, waiting and skipped
    #[arg(long)]
    pub(crate) json: bool,
    /// The name of the lock
    pub(crate) name: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Release {
    /// Say that it is meant: the holder may be at work, and is told that the lock is lost
    #[arg(long, required = true)]
    pub(crate) force: bool,
    /// Do not ask
    #[arg(long, short)]
    pub(crate) yes: bool,
    /// The name of the lock
    pub(crate) name: String,
}

/// Tell whether the store is fit for locks, and what to do where it is not
///
/// Connects, asks the server about its version, persistence, memory, replication and clock, and takes the
/// lock dlock-doctor once, with all that this user needs a right for. Ends with 123 if there is a problem:
/// locks do not work, or are not safe; with the code for that, if the store cannot be connected to at all. A
/// warning is about what some crash, failover or pause would cost, or a right that only some need.
#[derive(Debug, clap::Args)]
pub(crate) struct Doctor {
    /// End with 123 also if there is a warning
    #[arg(long)]
    pub(crate) strict: bool,
    /// One JSON object a line: about, severity (good, warning, problem), text
    #[arg(long)]
    pub(crate) json: bool,
}

/// Measure what locks cost on this store
///
/// Three things take a third of the time each: a question with one answer, a lock that nobody else wants, and
/// a lock that two clients of this program pass to one another. Only the lock dlock-bench-PID is touched.
#[derive(Debug, clap::Args)]
pub(crate) struct Bench {
    /// How long it takes in all
    #[arg(long = "for", value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    pub(crate) length: Duration,
    /// One JSON object: store, and round_trip, pair and hand_off with count, p50_ms and p99_ms
    #[arg(long)]
    pub(crate) json: bool,
}
