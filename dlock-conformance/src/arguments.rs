//! The arguments of a program that runs rules: those of libtest, and the kit's own.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use crate::book::explain;
use crate::cx::Effort;
use crate::options::{Histories, Options};
use crate::verify::verify;

/// The parsed arguments of a program that runs rules. The program uses [`main!`](crate::main), or its own
/// `main`, for example with several harnesses and flags for them.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Arguments {
    /// How to run, and which rules.
    pub options: Options,
    /// List the names of the rules instead of running them.
    pub list: bool,
    /// In the terse format, for programs.
    pub terse: bool,
    /// Run only ignored tests. No rule is ever ignored.
    pub ignored_only: bool,
    /// Print only the conclusion.
    pub quiet: bool,
    /// Histories and certificates to judge again, instead of running rules.
    pub verify: Option<Vec<PathBuf>>,
    /// Rules to explain, instead of running any.
    pub explain: Option<Vec<String>>,
}

/// Gives the value of the flag that is being read.
pub type Value<'a> = &'a mut dyn FnMut() -> Result<String, String>;

impl Arguments {
    /// Parses the arguments of this process. `own` sees each flag first, and returns whether it is one of the
    /// program's own.
    ///
    /// # Errors
    /// The exit code, if no rules should run: after printing `help`, after a bad argument, or after
    /// [`verify`] or `explain` has done its work.
    pub fn from_env(
        help: &str,
        own: impl FnMut(&str, Value<'_>) -> Result<bool, String>,
    ) -> Result<Self, ExitCode> {
        let mut out = io::stdout();
        match Self::parse(std::env::args().skip(1), own) {
            Ok(arguments) => {
                let code = match (&arguments.verify, &arguments.explain) {
                    (Some(files), _) => verify(files, &mut out),
                    (None, Some(names)) => explain(names, &mut out),
                    (None, None) => return Ok(arguments),
                };
                Err(code.map_or(ExitCode::FAILURE, ExitCode::from))
            }
            // Help on request is not a failure.
            Err(problem) if problem.is_empty() => {
                let _ = writeln!(out, "{help}");
                Err(ExitCode::SUCCESS)
            }
            Err(problem) => {
                // If this fails, there is no other place to report it.
                let _ = writeln!(io::stderr(), "{problem}\n{help}");
                Err(ExitCode::from(2))
            }
        }
    }

    /// The same for the given arguments. An unknown flag is refused.
    fn parse(
        args: impl Iterator<Item = String>,
        mut own: impl FnMut(&str, Value<'_>) -> Result<bool, String>,
    ) -> Result<Self, String> {
        let mut command = Self::default();
        let options = &mut command.options;
        let mut args = args.peekable();
        if args.next_if(|first| first == "verify").is_some() {
            let files: Vec<PathBuf> = args.map(PathBuf::from).collect();
            if files.is_empty() {
                return Err(
                    "verify needs a path: certificates, or histories from a run with --histories".to_owned(),
                );
            }
            command.verify = Some(files);
            return Ok(command);
        }
        if args.next_if(|first| first == "explain").is_some() {
            let names: Vec<String> = args.collect();
            if names.is_empty() {
                return Err("explain needs the numbers of rules, or parts of their names".to_owned());
            }
            command.explain = Some(names);
            return Ok(command);
        }
        while let Some(arg) = args.next() {
            let (flag, mut inline) = match arg.split_once('=') {
                Some((flag, value)) if flag.starts_with("--") => (flag.to_owned(), Some(value.to_owned())),
                _ => (arg, None),
            };
            let mut value = || {
                let value = inline.take().or_else(|| args.next());
                value.ok_or_else(|| format!("{flag} needs a value"))
            };
            match flag.as_str() {
                flag if own(flag, &mut value)? => {}
                "--list" => command.list = true,
                "--exact" => options.exact = true,
                "--ignored" => command.ignored_only = true,
                "--quiet" | "-q" => command.quiet = true,
                "--full" => options.effort = Effort::Full,
                // Nothing is captured, nothing is coloured, nothing is ignored.
                "--nocapture" | "--no-capture" | "--show-output" | "--include-ignored" => {}
                "--color" => drop(value()?),
                "--format" => match value()?.as_str() {
                    "terse" => command.terse = true,
                    "pretty" => command.terse = false,
                    other => return Err(format!("no such format: {other}")),
                },
                "--skip" => options.skip.push(value()?),
                "--test-threads" => {
                    let text = value()?;
                    let threads = text.parse();
                    options.parallel = threads.map_err(|_| format!("not a number of threads: {text}"))?;
                }
                "--seed" => options.seed = seed(&value()?)?,
                "--attempt-seed" => options.attempt_seed = Some(seed(&value()?)?),
                "--report" => options.report_to = Some(PathBuf::from(value()?)),
                "--certificate" => options.certificate_to = Some(PathBuf::from(value()?)),
                "--histories" => options.histories = Histories::All,
                "--help" | "-h" => return Err(String::new()),
                _ if flag.starts_with('-') => return Err(format!("no such flag: {flag}")),
                _ => options.filters.push(flag.clone()),
            }
            if let Some(value) = inline {
                return Err(format!("{flag} takes no value, but was given {value}"));
            }
        }
        Ok(command)
    }
}

fn seed(text: &str) -> Result<u64, String> {
    let seed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    seed.map_err(|_| format!("not a seed: {text}"))
}
