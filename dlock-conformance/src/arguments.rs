//! The arguments of a program that runs rules: those of libtest, and the kit's own.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use crate::book::explain;
use crate::cx::Effort;
use crate::options::{Histories, Options};
use crate::verify::verify;

/// What a program that runs rules was asked for: by [`main!`](crate::main), or by a `main` of one's own that
/// has several harnesses, say, and flags for them.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Arguments {
    /// How to run, and which rules.
    pub options: Options,
    /// Only their names are asked for.
    pub list: bool,
    /// In the form that programs read.
    pub terse: bool,
    /// Only what is marked as ignored is asked for, as no rule ever is.
    pub ignored_only: bool,
    /// Nothing is to be said but the end.
    pub quiet: bool,
    /// Stored histories to be judged again, instead of running rules.
    pub verify: Option<Vec<PathBuf>>,
    /// Rules that are to be explained, instead.
    pub explain: Option<Vec<String>>,
}

/// Gives the value of the flag that is being read.
pub type Value<'a> = &'a mut dyn FnMut() -> Result<String, String>;

impl Arguments {
    /// Those of this process. `own` is given each flag first, and says whether it is one of the program's
    /// own.
    ///
    /// # Errors
    /// With what the program is to end where nothing is to be run: `help` was asked for or is of need, or
    /// stored histories or what rules say were, which have been [judged](verify) or told then.
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
            // Asked for, help is an answer and no failure.
            Err(problem) if problem.is_empty() => {
                let _ = writeln!(out, "{help}");
                Err(ExitCode::SUCCESS)
            }
            Err(problem) => {
                // There is nobody left to tell if this fails.
                let _ = writeln!(io::stderr(), "{problem}\n{help}");
                Err(ExitCode::from(2))
            }
        }
    }

    /// The same of these; a flag that nobody knows is refused.
    pub(crate) fn parse(
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
                    "verify needs files: histories that a run with --histories left in its reports"
                        .to_owned(),
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
