//! Messages a second of [`PostgresMode`](sqs_once_postgres::PostgresMode) beside a plain sqlx loop of the same
//! statements, round trips of a message, and events a second of the relay. Writes the section
//! "PostgreSQL" of benches/RESULTS.md.
//!
//! Consumer and loop take turns over several rounds, in this process, on one thread. The server is a real
//! one on this machine. Another thread delays its answers. `BENCH_ROUNDS=1` is a quick look, which
//! writes no page.

#![recursion_limit = "256"]
#![allow(
    clippy::unwrap_used,
    reason = "a bench that cannot set up its surroundings has nothing better to do than panic"
)]

mod messages;
mod plain_loop;
mod relay;
mod slow_wire;

#[path = "../compare/numbers.rs"]
mod numbers;
#[path = "../postgres_section.rs"]
mod section;

use std::{fmt::Write as _, fs, path::Path, time::Duration};

use messages::{Candidate, Load};
use numbers::thousands;
use slow_wire::SlowWire;
use support::world::World;

const BATCHES: [usize; 3] = [1, 10, 100];
const CONNECTIONS: [u32; 3] = [1, 5, 10];
/// Time by which the wire delays each answer. Without a delay, the disk of the server decides.
const DELAY: Duration = Duration::from_millis(1);

#[tokio::main(flavor = "current_thread")]
async fn main() {
    // `cargo bench` passes arguments for libtest, which this is not.
    let rounds = std::env::var("BENCH_ROUNDS").map_or(3, |rounds| rounds.parse().unwrap());
    let time = Duration::from_millis(if rounds == 1 { 300 } else { 1500 });
    let world = World::start().await;

    let mut section = introduction(rounds);
    section += &table(&world, rounds, time).await;
    section += &messages::round_trips(&world).await;
    section += &relay::measure(&world).await;
    println!("{section}");
    if rounds > 1 {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/RESULTS.md");
        let old = fs::read_to_string(&page).unwrap();
        let (rest, _) = section::split(&old);
        fs::write(page, format!("{rest}{}\n{section}", section::TITLE)).unwrap();
    }
}

fn introduction(rounds: usize) -> String {
    format!(
        "`make bench` measures PostgreSQL mode beside the best plain loop of sqlx, `benches/postgres/plain_loop.rs`. The loop sends the\n\
         same five statements, for as many messages at a time as there are connections, and decides and logs nothing. Both run on one\n\
         thread of one process, which shares the machine with the server. Each figure is the median of {rounds} rounds.\n\n"
    )
}

/// Messages a second of both candidates, and their ratio.
async fn table(world: &World, rounds: usize, time: Duration) -> String {
    let wire = SlowWire::start(world.options.get_port(), DELAY);
    let delayed = world.options.clone().port(wire.port);
    let round_trip = messages::round_trip(&delayed).await;
    let mut text = format!(
        "| messages a second, {:.2} ms a round trip | plain loop | consumer |\n| --- | ---: | ---: |\n",
        round_trip.as_secs_f64() * 1e3
    );
    for messages in BATCHES {
        for connections in CONNECTIONS {
            let load = Load {
                messages,
                connections,
                time,
            };
            let mut rates = [Vec::new(), Vec::new()];
            for round in 0..rounds {
                let turns = match round % 2 {
                    0 => Candidate::ALL,
                    _ => [Candidate::ALL[1], Candidate::ALL[0]],
                };
                for candidate in turns {
                    eprint!("\rbatch {messages}, {connections} connections, {candidate:?}      ");
                    world.run_sql("TRUNCATE sqs_once_records, things").await;
                    rates[candidate as usize].push(candidate.rate(&delayed, load).await);
                }
            }
            let [plain, consumer] = rates.map(median);
            let (of, s) = match connections {
                1 => ("connection", ""),
                _ => ("connection", "s"),
            };
            writeln!(
                text,
                "| {}, {connections} {of}{s} | {} | {} ({:.2} x) |",
                numbers::batch_of(messages),
                thousands(plain),
                thousands(consumer),
                consumer / plain,
            )
            .unwrap();
        }
    }
    eprintln!();
    text + "\n"
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
