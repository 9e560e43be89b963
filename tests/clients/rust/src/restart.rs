//! The broker goes and comes in the middle of 1500 sends.
use std::collections::{HashMap, HashSet};

use danube_client::{Consumer, Producer, ProducerOptions, SubType};
use tokio::time::{sleep, timeout};

use crate::check;
use crate::talk::*;

const TOTAL: usize = 1500;

/// Send all; returns how often the client gave one up with a status that it does not retry.
///
/// tonic calls a connection that was reset UNKNOWN or CANCELLED: after a kill, an application must try again itself.
async fn send_all(p: Producer) -> Result<usize> {
    let mut given_up = 0;
    for i in 0..TOTAL {
        while let Err(error) = p.send(i.to_string().into_bytes(), None).await {
            let why = text(error);
            let broken = ["transport error", "operation was canceled", "tcp connect error"]
                .iter()
                .any(|known| why.contains(known));
            check!(broken && given_up < 600, "send {i}: {why}");
            given_up += 1;
            sleep(secs(0.1)).await; // an application's own pause before it tries again
        }
        sleep(secs(0.001)).await; // a steady producer
    }
    Ok(given_up)
}

/// Subscribe anew, as an application does whose receive loop has ended for good.
async fn resubscribe(t: &str) -> Result<(Consumer, Messages)> {
    let mut why = String::new();
    for _ in 0..300 {
        match async { consumer(&client().await?, t, "c", SubType::Exclusive).await }.await {
            Ok(both) => return Ok(both),
            Err(error) => why = error,
        }
        sleep(secs(0.2)).await;
    }
    Err(format!("subscribe: {why}"))
}

pub async fn restart(how: &'static str) -> Outcome {
    let t = topic(&format!("restart-{how}"));
    let p =
        producer_with(&client().await?, &t, |builder| builder.with_options(ProducerOptions::new(300, 20, 200))).await?;
    let (mut k, mut messages) = consumer(&client().await?, &t, "c", SubType::Exclusive).await?;
    let sending = tokio::spawn(send_all(p));
    let mut back = None;
    let mut stored: HashMap<u64, Vec<u8>> = HashMap::new();
    let (mut values, mut acked) = (HashSet::new(), HashSet::new());
    let (mut again, mut late, mut lost, mut ended) = (0, 0, 0, 0);
    while values.len() < TOTAL {
        if values.len() >= 300 && back.is_none() {
            println!("restart now {how}");
            back = Some(tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())));
        }
        let Some(m) =
            timeout(secs(60.0), messages.recv()).await.map_err(|_| format!("stuck after {}", values.len()))?
        else {
            ended += 1;
            (k, messages) = resubscribe(&t).await?;
            continue;
        };
        let offset = m.msg_id.topic_offset;
        if let Some(old) = stored.insert(offset, m.payload.to_vec()) {
            check!(old == m.payload, "offset {offset} was {old:?}, is {:?}", m.payload);
            again += 1;
        }
        values.insert(m.payload.to_vec());
        match timeout(secs(5.0), k.ack(&m)).await {
            Ok(Ok(())) => late += usize::from(!acked.insert(offset)),
            _ => lost += 1,
        }
    }
    let given_up = sending.await.map_err(text)??;
    if let Some(back) = back {
        back.await.map_err(text)?.map_err(text)?;
    }
    for offset in 0..stored.len() as u64 {
        check!(stored.contains_key(&offset), "offset {offset} is missing");
    }
    println!(
        "  note {} stored for {TOTAL} sent, {again} redelivered ({late} of them after an answered ack), {lost} acks unanswered, \
         {given_up} sends and {ended} receive loops given up by the client",
        stored.len()
    );
    check!(
        how == "kill" || given_up + ended == 0,
        "a broker that shuts down told the client a status that it does not retry"
    );
    k.close().await;
    Ok(())
}
