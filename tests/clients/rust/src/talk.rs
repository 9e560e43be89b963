//! The client's calls, each with a bound on its time, and its errors as text.
use std::future::Future;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use danube_client::{Consumer, ConsumerOptions, DanubeClient, Producer, ProducerBuilder, SubType};
use danube_core::message::StreamMessage;
use tokio::sync::mpsc::Receiver;
use tokio::time::timeout;

pub type Result<T> = std::result::Result<T, String>;
pub type Outcome = Result<()>;
pub type Messages = Receiver<StreamMessage>;

/// The clients do not tell when their stream has reached the broker.
pub const ATTACHED: Duration = Duration::from_millis(400);

static URL: OnceLock<String> = OnceLock::new();
static STAMP: OnceLock<u128> = OnceLock::new();

#[macro_export]
macro_rules! check {
    ($ok:expr, $($a:tt)*) => { if !$ok { return Err(format!($($a)*)); } };
}

pub fn begin(url: String) {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    STAMP.set(since.unwrap().as_millis()).unwrap();
    URL.set(url).unwrap();
}

pub fn stamp() -> u128 {
    *STAMP.get().unwrap()
}

pub fn topic(name: &str) -> String {
    format!("/default/rust-{name}-{}", stamp())
}

pub fn text(error: impl std::fmt::Debug) -> String {
    format!("{error:?}")
}

pub fn secs(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

/// What a call gives, if it gives it in time.
pub async fn within<T, E: std::fmt::Debug>(
    seconds: f64,
    what: &str,
    call: impl Future<Output = std::result::Result<T, E>>,
) -> Result<T> {
    match timeout(secs(seconds), call).await {
        Err(_) => Err(format!("{what} hangs, no answer after {seconds} s")),
        Ok(outcome) => outcome.map_err(text),
    }
}

pub async fn client() -> Result<DanubeClient> {
    DanubeClient::builder().service_url(URL.get().unwrap()).build().await.map_err(text)
}

pub async fn producer_with(
    client: &DanubeClient,
    topic: &str,
    options: impl FnOnce(ProducerBuilder) -> ProducerBuilder,
) -> Result<Producer> {
    let builder = client.new_producer().with_topic(topic).with_name("p").with_reliable_dispatch();
    let mut made = options(builder).build().map_err(text)?;
    within(30.0, "create", made.create()).await?;
    Ok(made)
}

pub async fn producer(client: &DanubeClient, topic: &str) -> Result<Producer> {
    producer_with(client, topic, |builder| builder).await
}

pub async fn consumer_with(
    client: &DanubeClient,
    topic: &str,
    name: &str,
    kind: SubType,
    filters: &[&str],
) -> Result<(Consumer, Messages)> {
    let mut made = client
        .new_consumer()
        .with_topic(topic)
        .with_consumer_name(name)
        .with_subscription("s")
        .with_subscription_type(kind)
        .with_options(ConsumerOptions::new(300, 20, 200))
        .with_key_filters(filters.iter().map(|filter| filter.to_string()).collect())
        .build()
        .map_err(text)?;
    within(30.0, "subscribe", made.subscribe()).await?;
    let messages = within(5.0, "receive", made.receive()).await?;
    Ok((made, messages))
}

pub async fn consumer(client: &DanubeClient, topic: &str, name: &str, kind: SubType) -> Result<(Consumer, Messages)> {
    consumer_with(client, topic, name, kind, &[]).await
}

pub async fn next(messages: &mut Messages, seconds: f64) -> Result<StreamMessage> {
    match timeout(secs(seconds), messages.recv()).await {
        Err(_) => Err(format!("no message within {seconds} s")),
        Ok(got) => got.ok_or("the receive loop has ended".into()),
    }
}

pub async fn none(messages: &mut Messages, seconds: f64) -> Outcome {
    match timeout(secs(seconds), messages.recv()).await {
        Err(_) => Ok(()),
        Ok(got) => Err(format!("unexpected {got:?}")),
    }
}

pub async fn send(producer: &Producer, data: Vec<u8>) -> Outcome {
    within(30.0, "send", producer.send(data, None)).await.map(drop)
}

pub async fn send_key(producer: &Producer, data: &str, key: &str) -> Outcome {
    within(30.0, "send", producer.send_with_key(data.into(), None, key)).await.map(drop)
}

pub async fn ack(consumer: &mut Consumer, message: &StreamMessage) -> Outcome {
    within(10.0, "ack", consumer.ack(message)).await
}
