//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};
use clap_complete::Shell;

const CODES: &str = "\
Exit codes: that of the command, or 128 plus the number of the signal that ended it. Those of dlock itself:
  120  the lock was lost while the command ran, and the command was ended
  121  the store cannot be reached, or the outcome of a request is not known
  122  the store refused: a right or a feature is missing, a limit is reached, or it has foreign data
  123  dlock doctor found a problem
  124  somebody else holds the lock, or it was not free within the time given
  125  the command line, the configuration or the name is wrong
  126  the command cannot be started
  127  the command was not found";

const STORES: &str = "\
The store is the URL of --url, else DLOCK_URL, else `url` in ~/.config/dlock.toml or /etc/dlock.toml.
Without any of these it is a SQLite file of the user, for the processes of one user on one machine.
  redis://host  rediss://host  redis+sentinel://a,b,c/master  redis+cluster://a,b
  postgres://user@host/database  mysql://user@host/database  zk://a,b,c  sqlite:///path/to/file
  etcd://a,b,c (in a build with the feature `etcd`)
Put a password into the URL, or into the file of --password-file (DLOCK_PASSWORD_FILE, `password_file`).";

const EXAMPLES: &str = "\
Examples:
  dlock run backup -- ./backup                     run one at a time, waiting for the lock
  dlock run --try backup -- ./backup               run, or end with 124 if the lock is held
  dlock run --wait 30s --ttl 10s deploy -- make deploy
  dlock run --permits 3 encode -- ffmpeg …         run three at a time
  dlock elect scheduler -- ./scheduler             run on the one host that leads
  dlock status backup                              show who holds a lock
  dlock ls --long jobs/                            show all locks whose names start so
  dlock --url redis://db.example watch backup      show how the holders of a lock change
  dlock --url redis://db.example doctor            check that the store is fit for locks
  dlock --url redis://db.example bench             measure what locks cost on the store";

/// Run commands under distributed locks, and show who holds them
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
    /// The URL of the store that has the locks
    #[arg(long, env = "DLOCK_URL", hide_env_values = true, global = true)]
    pub(crate) url: Option<String>,
    /// A file whose first line is the password for that URL
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
    /// Release a lock that somebody else holds
    Release(Release),
    #[command(after_long_help = CODES)]
    Doctor(Doctor),
    Bench(Bench),
    /// Print the completion script for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write the manual pages to a folder
    Man {
        /// The folder
        folder: PathBuf,
    },
}

/// How a lock is held while a command runs.
#[derive(Debug, clap::Args)]
pub(crate) struct Hold {
    /// How long the lock stays taken after this host has vanished
    ///
    /// Normally the lock is renewed long before. If the store does not answer for longer than this, the lock
    /// is lost and the command is ended. In ZooKeeper and etcd, and in databases with `strategy=session`, the
    /// session counts instead: `session_timeout` or `session_ttl` in the URL.
    #[arg(long, default_value = "30s", value_parser = humantime::parse_duration)]
    pub(crate) ttl: Duration,
    /// The time between TERM and KILL, at most a third of the ttl [default: a sixth of the ttl, at most 10s]
    ///
    /// If the lock cannot be renewed, the command gets TERM this long before others may get the lock, and
    /// KILL just before.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) kill_after: Option<Duration>,
    /// The label that others see of the holder [default: this host and process]
    #[arg(long)]
    pub(crate) label: Option<String>,
}

/// Acquire a lock, run a command, release the lock
///
/// The command runs in its own process group. If the lock is lost, the whole group is ended before others may
/// get the lock. The same happens if this program is killed or stopped. When the command ends, the processes
/// that it left in the background are ended too. TERM, INT, HUP, QUIT, USR1 and USR2 are passed on to the
/// group.
///
/// The environment of the command has DLOCK_NAME, the name of the lock; DLOCK_TOKEN, the fencing token, if
/// the store has tokens; and DLOCK_URL, the store without passwords.
#[derive(Debug, clap::Args)]
pub(crate) struct Run {
    /// Do not wait: end with 124 if the lock is held
    #[arg(long = "try", conflicts_with = "wait")]
    pub(crate) once: bool,
    /// Wait at most this long [default: for ever]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) wait: Option<Duration>,
    /// Keep the lock at least this long, even if the command ends sooner; at most the ttl. For short jobs
    /// that hosts with different clocks start at the same time
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) at_least: Option<Duration>,
    /// Share the lock with others that pass --shared, and with nobody else
    #[arg(long, conflicts_with = "permits")]
    pub(crate) shared: bool,
    /// Share the lock, N holders at a time; all must pass the same N
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

/// Run a command on the one host that leads
///
/// Of all hosts that run this with the same name, one leads and runs the command. If it vanishes, another one
/// leads after the ttl. When the command ends, dlock ends with its exit code. If the leadership is lost, the
/// command is ended, and started again when this host leads again.
#[derive(Debug, clap::Args)]
pub(crate) struct Elect {
    /// The value that others see of the leader, such as its address [default: this host and process]
    #[arg(long, conflicts_with = "label")]
    pub(crate) value: Option<String>,
    /// Restart the command when it ends, whatever its exit code, while this host leads
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
    /// Print one JSON object: name, waiting, holders (id, mode, token, expires_in_ms, owner, whereabouts)
    #[arg(long)]
    pub(crate) json: bool,
    /// The name of the lock
    pub(crate) name: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Ls {
    /// Show the holders of each lock
    #[arg(long, short)]
    pub(crate) long: bool,
    /// Print one JSON object per line: name; with --long also waiting and holders, as status does
    #[arg(long)]
    pub(crate) json: bool,
    /// Only locks whose names start with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Watch {
    /// Print one JSON object per line: event (snapshot, granted, released, expired, forced), with id and
    /// holder, or with holders, waiting and skipped
    #[arg(long)]
    pub(crate) json: bool,
    /// The name of the lock
    pub(crate) name: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Release {
    /// Confirm: the holder may be at work, and loses the lock
    #[arg(long, required = true)]
    pub(crate) force: bool,
    /// Do not ask for confirmation
    #[arg(long, short)]
    pub(crate) yes: bool,
    /// The name of the lock
    pub(crate) name: String,
}

/// Check that the store is fit for locks, and say what to do if it is not
///
/// Connects, asks the server about its version, persistence, memory, replication and clock, and acquires the
/// lock dlock-doctor once, using every right that this user needs. Ends with 123 if there is a problem: locks
/// do not work, or are not safe. If the store cannot be connected to, it ends with the code for that. A
/// warning is about the cost of some crash, failover or pause, or about a right that only some users need.
#[derive(Debug, clap::Args)]
pub(crate) struct Doctor {
    /// Also end with 123 if there is a warning
    #[arg(long)]
    pub(crate) strict: bool,
    /// Print one JSON object per line: about, severity (good, warning, problem), text
    #[arg(long)]
    pub(crate) json: bool,
}

/// Measure what locks cost on this store
///
/// Measures, for a third of the time each: one round trip, acquire and release without contention, and the
/// hand-off between two clients of this program. Only uses the lock dlock-bench-PID.
#[derive(Debug, clap::Args)]
pub(crate) struct Bench {
    /// The time for all measurements
    #[arg(long = "for", value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    pub(crate) length: Duration,
    /// Print one JSON object: store, and round_trip, pair and hand_off with count, p50_ms and p99_ms
    #[arg(long)]
    pub(crate) json: bool,
}
