//! With nobody else at the lock.

use dlock_benches::figures::Shows;
use dlock_benches::redis::{Effort, Goals, Meter as _, in_turn, micros, middle, rate, timed};
use dlock_benches::zookeeper::{Curator, Raw, Recipe, Server, backend, client};
use dlock_benches::{RawPair, api_pair};

/// Java and ours: so long everything is let warm up.
const WARM: u64 = 10;

/// One acquire and release after the other.
pub(crate) async fn pair(server: &Server, effort: Effort, table: &mut Goals) {
    let raw = Raw::new(server).await;
    raw.line("/raw").await;
    raw.line("/two").await;
    let mut recipe = Recipe::new(server, "/recipe/pair").await;
    let (spi, client) = (backend(server).await, client(server).await);
    let lock = client.lock("a-name-of-twenty-one-b").expect("a good name");
    let mut bare = RawPair::new("a-name-of-twenty-one-a");
    let mut cycle = async |kind| match kind {
        0 => raw.triple("/raw").await,
        1 => raw.in_two("/two").await,
        2 => recipe.pair().await,
        3 => bare.run(&spi).await,
        _ => api_pair(&lock).await,
    };
    in_turn::<5>(effort.times(5 * WARM), &mut cycle).await;
    let mut times = in_turn(effort.times(5) * effort.rounds as u32, cycle).await;
    let before = server.counted();
    let cycles = timed(effort.times(1), async || api_pair(&lock).await).await.len() as f64;
    let counted = server.counted().since(&before);
    let series = [
        "raw: create, list, delete",
        "raw: in two round trips",
        "the driver's recipe",
        "backend alone",
        "dlock",
    ];
    let [raw, two, recipe, bare, api] = table.points.spreads("ZooKeeper", series, &mut times);
    let curator = micros(Curator::new(server).pair("/curator/pair", effort.times(4)).0);
    table
        .points
        .add(Shows::Latency, "ZooKeeper", "Curator", "p50", curator);
    table.row(
        "acquire + release, p50",
        format!("{api:.1} µs"),
        format!(
            "the driver's create, list, delete one by one {raw:.1} µs, in two round trips {two:.1} µs; \
                backend alone {bare:.1} µs; the driver's recipe {recipe:.1} µs; \
             Curator {curator:.1} µs"
        ),
        format!("{:.2}", api / raw),
        "≤ 1.00",
    );
    table.row(
        "requests of it",
        format!("{:.3}", counted.of("received") as f64 / cycles),
        "fencing token included".to_owned(),
        String::new(),
        "3",
    );
}

/// Each of many tasks has a lock of its own, over one session.
pub(crate) async fn inflight(server: &Server, effort: Effort, table: &mut Goals) {
    const TASKS: usize = 64;
    let (session, client) = (Recipe::new(server, "").await, client(server).await);
    let recipes: Vec<_> = (0..TASKS)
        .map(|n| session.at(format!("/recipe/{n:014}")))
        .collect();
    let lock = |n| client.lock(format!("inflight-{n:012}")).expect("a good name");
    let locks: Vec<_> = (0..TASKS).map(lock).collect();
    let (mut theirs, mut ours) = (Vec::new(), Vec::new());
    for round in 0..=effort.rounds {
        // The first round is for warming up.
        let length = effort.times(if round == 0 { WARM } else { 2 });
        let pairs = recipes.iter().cloned();
        let of_recipe = rate(length, pairs.map(|mut recipe| async move || recipe.pair().await)).await;
        let of_ours = rate(
            length,
            locks.iter().map(|lock| async move || api_pair(lock).await),
        )
        .await;
        if round > 0 {
            theirs.push(of_recipe);
            ours.push(of_ours);
        }
    }
    let (recipe, dlock) = (middle(&mut theirs), middle(&mut ours));
    for (series, rate) in [("the driver's recipe", recipe), ("dlock", dlock)] {
        let plot = "ZooKeeper, 64 tasks on 64 locks";
        table.points.add(Shows::Throughput, plot, series, "", rate);
    }
    table.row(
        "64 tasks on 64 locks",
        format!("{dlock:.0} pairs/s"),
        format!("the driver's recipe {recipe:.0} pairs/s"),
        format!("{:.2}", dlock / recipe),
        "≥ 1.0",
    );
}
