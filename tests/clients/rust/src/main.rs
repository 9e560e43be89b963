//! The official Rust client against a broker: driver URL [SCENARIO…]. One line tells of each scenario (../README.md).
mod restart;
mod scenarios;
mod talk;

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

use talk::{text, Outcome};

const SCENARIO_MAX: Duration = Duration::from_secs(90);

type Scenario = Pin<Box<dyn Future<Output = Outcome> + Send>>;

fn scenarios() -> Vec<(&'static str, Scenario)> {
    vec![
        ("exclusive", Box::pin(scenarios::exclusive())),
        ("shared", Box::pin(scenarios::shared())),
        ("partitions", Box::pin(scenarios::partitions())),
        ("key-shared", Box::pin(scenarios::key_shared())),
        ("key-filters", Box::pin(scenarios::key_filters())),
        ("nack", Box::pin(scenarios::nack())),
        ("large", Box::pin(scenarios::large())),
        ("too-large", Box::pin(scenarios::too_large())),
        ("first-message", Box::pin(scenarios::first_message())),
        ("close-idle", Box::pin(scenarios::close_idle())),
        ("schema", Box::pin(scenarios::schema())),
        ("reopen", Box::pin(scenarios::reopen())),
        ("many", Box::pin(scenarios::many())),
        ("restart-kill", Box::pin(restart::restart("kill"))),
        ("restart-term", Box::pin(restart::restart("term"))),
    ]
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    talk::begin(arguments.next().expect("the broker's URL"));
    let wanted: Vec<String> = arguments.collect();
    let mut failed = false;
    for (name, scenario) in scenarios() {
        if !wanted.is_empty() && !wanted.iter().any(|w| w == name) {
            continue;
        }
        let began = Instant::now();
        let outcome = match tokio::time::timeout(SCENARIO_MAX, tokio::spawn(scenario)).await {
            Err(_) => Err(format!("no end after {SCENARIO_MAX:?}")),
            Ok(Err(panic)) => Err(text(panic)),
            Ok(Ok(outcome)) => outcome,
        };
        let took = began.elapsed().as_secs_f64();
        match outcome {
            Ok(()) => println!("ok {name} ({took:.1} s)"),
            Err(why) => {
                failed = true;
                println!("FAIL {name}: {why} ({took:.1} s)");
            }
        }
    }
    std::process::exit(i32::from(failed)); // what a scenario left running ends with it
}
