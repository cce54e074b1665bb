//! One Prometheus server for all tests, and a program for each that it scrapes.

use std::collections::BTreeSet;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use dlock::{Client, Memory, Runtime, runtime};
use dlock_testkit::{Port, PrometheusServer, until};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use serde_json::Value;

/// What a machine that is busy may need for anything.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) const ALERTS: &str = include_str!("../../docs/prometheus/alerts.yml");
const PAGE: &str = include_str!("../../docs/operating.md");

/// As many as there are tests with a program.
const PROGRAMS: usize = 16;

struct Monitor {
    server: PrometheusServer,
    /// The jobs that no test has yet, and where each is scraped.
    free: Mutex<Vec<(String, Port)>>,
}

/// To scrape it begins after five seconds, so there is one for all.
static MONITOR: LazyLock<Monitor> = LazyLock::new(|| {
    let job = |n: usize| (format!("program-{n}"), Port::free().unwrap());
    let free: Vec<_> = (0..PROGRAMS).map(job).collect();
    let jobs: Vec<_> = free
        .iter()
        .map(|(job, port)| (job.clone(), port.address()))
        .collect();
    Monitor {
        server: PrometheusServer::start(&jobs, &at_once(ALERTS)).unwrap(),
        free: Mutex::new(free),
    }
});

/// The same rules, without the time for which something has to last. Thresholds and ranges stay as they are.
/// The time has a test of its own: `files.rs`.
fn at_once(rules: &str) -> String {
    let line = |line: &str| match line.trim_start().strip_prefix("for: ") {
        Some(_) => "        for: 0s\n".to_owned(),
        None => format!("{line}\n"),
    };
    rules.lines().map(line).collect()
}

/// The bounds that the page has programs set: those in its only `&[...]`.
pub(crate) fn buckets() -> Vec<f64> {
    let (_, rest) = PAGE.split_once("= &[").unwrap();
    let (list, _) = rest.split_once(']').unwrap();
    let bounds = list.split(',').map(str::trim).filter(|bound| !bound.is_empty());
    bounds.map(|bound| bound.parse().unwrap()).collect()
}

/// A program that is scraped.
pub(crate) struct Site {
    job: String,
    scraped: PrometheusHandle,
}

/// Runs that in a program that is scraped, on this thread: nobody else counts there.
pub(crate) fn scraped(story: impl AsyncFnOnce(&Site)) {
    let mut free = MONITOR.free.lock().unwrap_or_else(PoisonError::into_inner);
    let (job, port) = free.pop().expect("more programs than `PROGRAMS`");
    drop(free);
    let recorder = PrometheusBuilder::new()
        .with_recommended_naming(true)
        .set_buckets_for_metric(Matcher::Prefix("dlock_".into()), &buckets())
        .unwrap()
        .build_recorder();
    let site = Site {
        job,
        scraped: recorder.handle(),
    };
    serve(port, recorder.handle());
    metrics::with_local_recorder(&recorder, || {
        dlock::observe::describe();
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build();
        tokio.unwrap().block_on(story(&site));
    });
}

/// Answers every request with what was counted, to the end of the test program.
fn serve(port: Port, counted: PrometheusHandle) {
    let listener = TcpListener::bind(port.address()).unwrap();
    std::thread::spawn(move || {
        let _kept = port;
        for stream in listener.incoming() {
            let answer = |mut stream: std::net::TcpStream| -> io::Result<()> {
                let head = BufReader::new(stream.try_clone()?).lines();
                head.map_while(Result::ok).find(String::is_empty);
                let body = counted.render();
                write!(
                    stream,
                    "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n\
                     Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
                    body.len()
                )
            };
            // A scraper that has gone meanwhile comes again.
            let _ = stream.and_then(answer);
        }
    });
}

/// A store in memory and a client of it.
pub(crate) fn in_memory() -> (Memory, Client) {
    let runtime = runtime::detect().unwrap();
    let store = Memory::new(runtime.clone());
    let client = client_of(&store, runtime);
    (store, client)
}

pub(crate) fn client_of(store: &Memory, runtime: Arc<dyn Runtime>) -> Client {
    Client::builder(store.connect(), runtime).build().unwrap()
}

fn json(text: &str) -> io::Result<Value> {
    serde_json::from_str(text).map_err(io::Error::other)
}

/// What the server answers there.
pub(crate) fn get(path: &str) -> io::Result<Value> {
    Ok(json(&MONITOR.server.get(path)?)?["data"].take())
}

/// What the server makes of that: the labels and the value of each series.
pub(crate) fn query(expression: &str) -> io::Result<Vec<(Value, f64)>> {
    let data = json(&MONITOR.server.query(expression)?)?["data"].take();
    let series = data["result"].as_array().cloned().unwrap_or_default();
    let value = |s: &Value| {
        s["value"][1]
            .as_str()
            .and_then(|v| v.parse().ok())
            .unwrap_or(f64::NAN)
    };
    Ok(series
        .into_iter()
        .map(|s| (s["metric"].clone(), value(&s)))
        .collect())
}

/// When each group of rules was evaluated last.
fn evaluated() -> io::Result<Vec<String>> {
    let groups = get("/api/v1/rules")?;
    let groups = groups["groups"].as_array().cloned().unwrap_or_default();
    Ok(groups
        .iter()
        .map(|group| group["lastEvaluation"].to_string())
        .collect())
}

/// The alarms of that program: the name, and the word of the label that says which.
fn alarms(job: &str) -> io::Result<BTreeSet<(String, String)>> {
    let all = get("/api/v1/alerts")?;
    let all = all["alerts"].as_array().cloned().unwrap_or_default();
    let own = all.iter().filter(|alert| alert["labels"]["job"] == job);
    let told = own.map(|alert| {
        assert_eq!(alert["state"], "firing", "{alert}");
        for text in ["summary", "description"].map(|key| alert["annotations"][key].to_string()) {
            assert!(text.len() > 20 && !text.contains("error expanding"), "{alert}");
            assert!(!text.contains("%!") && !text.contains("<no value>"), "{alert}");
        }
        let label = |key: &str| alert["labels"][key].as_str().unwrap_or_default().to_owned();
        (label("alertname"), ["reason", "outcome"].map(label).concat())
    });
    Ok(told.collect())
}

/// Waits, on a thread that may be blocked: locks have to be renewed meanwhile.
async fn wait(what: &'static str, is: impl FnMut() -> io::Result<bool> + Send + 'static) {
    let waited = tokio::task::spawn_blocking(move || until(what, LONG, is));
    waited.await.unwrap().unwrap();
}

impl Site {
    pub(crate) fn job(&self) -> &str {
        &self.job
    }

    /// What a scrape gets now.
    pub(crate) fn scrape(&self) -> String {
        self.scraped.render()
    }

    /// Waits until the server has scraped that value of a series of this program: `dlock_held` or
    /// `dlock_lost_total{reason="expired"}`.
    pub(crate) async fn has_scraped(&self, series: &str, value: f64) {
        let (name, labels) = series
            .trim_end_matches('}')
            .split_once('{')
            .unwrap_or((series, ""));
        let expression = format!("{name}{{job='{}',{labels}}}", self.job);
        wait("the value is scraped", move || {
            let seen: Vec<f64> = query(&expression)?.into_iter().map(|(_, value)| value).collect();
            match seen[..] == [value] {
                true => Ok(true),
                false => Err(io::Error::other(format!("{expression} is {seen:?}, not {value}"))),
            }
        })
        .await;
    }

    /// Waits until all rules were evaluated by what is scraped now, and sees that none is raised.
    pub(crate) async fn is_quiet(&self) {
        self.has_scraped("dlock_acquires_total{outcome='held'}", 0.0)
            .await;
        self.is_still_quiet().await;
    }

    /// The same, of a program that has been scraped before.
    pub(crate) async fn is_still_quiet(&self) {
        // The first to end may have begun before.
        for _ in 0..2 {
            let before = evaluated().unwrap();
            let all_later = move || {
                Ok(evaluated()?
                    .iter()
                    .zip(&before)
                    .all(|(now, before)| now != before))
            };
            wait("the rules are evaluated", all_later).await;
        }
        assert_eq!(alarms(&self.job).unwrap(), BTreeSet::new());
    }

    /// Waits until these alarms are raised and no others, each with the word of the label that says which.
    pub(crate) async fn raises(&self, these: &[(&str, &str)]) {
        let wanted: BTreeSet<_> = these
            .iter()
            .map(|(a, b)| ((*a).to_owned(), (*b).to_owned()))
            .collect();
        let job = self.job.clone();
        wait("the alarms are raised", move || match alarms(&job)? {
            seen if seen == wanted => Ok(true),
            seen => Err(io::Error::other(format!("raised: {seen:?}"))),
        })
        .await;
    }
}
