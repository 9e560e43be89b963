//! What one broker that stays up owes the client.
use std::collections::{HashMap, HashSet};

use danube_client::{SchemaType, SubType};
use danube_core::message::StreamMessage;
use tokio::sync::mpsc::{unbounded_channel, UnboundedReceiver};
use tokio::time::{sleep, timeout};

use crate::check;
use crate::talk::*;

pub async fn exclusive() -> Outcome {
    let (c, t) = (client().await?, topic("exclusive"));
    let p = producer(&c, &t).await?;
    let (mut k, mut messages) = consumer(&c, &t, "c", SubType::Exclusive).await?;
    let sending = tokio::spawn(async move {
        for i in 0..1000 {
            let attributes = HashMap::from([("n".to_string(), i.to_string()), ("kind".to_string(), "x".to_string())]);
            p.send(format!("message {i}").into_bytes(), Some(attributes)).await.map_err(text)?;
        }
        Ok::<(), String>(())
    });
    for i in 0..1000u64 {
        let m = next(&mut messages, 20.0).await?;
        check!(m.payload == format!("message {i}").as_bytes(), "payload {:?} at {i}", m.payload);
        check!(m.msg_id.topic_offset == i, "offset {} at {i}", m.msg_id.topic_offset);
        let attributes = &m.attributes;
        check!(attributes.len() == 2 && attributes["n"] == i.to_string(), "attributes {attributes:?}");
        check!(m.producer_name == "p" && m.publish_time > 0 && m.msg_id.topic_name == t, "fields {m:?}");
        ack(&mut k, &m).await?;
    }
    sending.await.map_err(text)??;
    none(&mut messages, 0.2).await?;
    k.close().await;
    Ok(())
}

/// Two consumers, each with a connection of its own, that acknowledge all they get; who got what.
async fn pair(t: &str, kind: fn() -> SubType) -> Result<UnboundedReceiver<(usize, StreamMessage, Outcome)>> {
    let (put, all) = unbounded_channel();
    for who in 0..2usize {
        let (mut k, mut messages) = consumer(&client().await?, t, &format!("c{who}"), kind()).await?;
        let put = put.clone();
        tokio::spawn(async move {
            while let Some(m) = messages.recv().await {
                let acked = ack(&mut k, &m).await;
                if put.send((who, m, acked)).is_err() {
                    break;
                }
            }
        });
    }
    sleep(ATTACHED).await;
    Ok(all)
}

pub async fn shared() -> Outcome {
    let t = topic("shared");
    let p = producer(&client().await?, &t).await?;
    let mut all = pair(&t, || SubType::Shared).await?;
    for i in 0..400 {
        send(&p, i.to_string().into_bytes()).await?;
    }
    let (mut seen, mut share) = (HashSet::new(), [0; 2]);
    for i in 0..400 {
        let got = timeout(secs(20.0), all.recv()).await.map_err(|_| format!("only {i} messages"))?;
        let (who, m, acked) = got.ok_or("both receive loops have ended")?;
        acked?;
        let offset = m.msg_id.topic_offset;
        check!(m.payload == offset.to_string().as_bytes(), "payload {:?} at {offset}", m.payload);
        check!(seen.insert(offset), "offset {offset} twice");
        share[who] += 1;
    }
    check!(share[0] > 0 && share[1] > 0, "shares {share:?}");
    check!(timeout(secs(0.3), all.recv()).await.is_err(), "one too many");
    Ok(())
}

pub async fn partitions() -> Outcome {
    let (c, t) = (client().await?, topic("partitions"));
    let p = producer_with(&c, &t, |builder| builder.with_partitions(3)).await?;
    let (mut k, mut messages) = consumer(&c, &t, "c", SubType::Exclusive).await?;
    for i in 0..300 {
        send(&p, i.to_string().into_bytes()).await?;
    }
    let mut offsets: HashMap<String, Vec<u64>> = HashMap::new();
    let mut seen = HashSet::new();
    for _ in 0..300 {
        let m = next(&mut messages, 20.0).await?;
        ack(&mut k, &m).await?;
        offsets.entry(m.msg_id.topic_name.clone()).or_default().push(m.msg_id.topic_offset);
        seen.insert(m.payload.clone());
    }
    check!(seen.len() == 300 && offsets.len() == 3, "{} messages, {} partitions", seen.len(), offsets.len());
    for (name, list) in offsets {
        check!(list == (0..100).collect::<Vec<_>>(), "{name}: {list:?}");
    }
    k.close().await;
    Ok(())
}

pub async fn key_shared() -> Outcome {
    let t = topic("keys");
    let p = producer(&client().await?, &t).await?;
    let mut all = pair(&t, || SubType::KeyShared).await?;
    for i in 0..200 {
        send_key(&p, &format!("{i:03}"), &format!("key-{}", i % 20)).await?;
    }
    let mut owner: HashMap<String, usize> = HashMap::new();
    let mut order: HashMap<String, Vec<Vec<u8>>> = HashMap::new();
    for i in 0..200 {
        let got = timeout(secs(20.0), all.recv()).await.map_err(|_| format!("only {i} messages"))?;
        let (who, m, acked) = got.ok_or("both receive loops have ended")?;
        acked?;
        let key = m.routing_key.clone().ok_or("no key")?;
        check!(*owner.entry(key.clone()).or_insert(who) == who, "key {key} at both");
        order.entry(key).or_default().push(m.payload.to_vec());
    }
    check!(order.len() == 20, "{} keys", order.len());
    for (key, list) in order {
        check!(list.len() == 10 && list.is_sorted(), "{key}: {list:?}");
    }
    Ok(())
}

pub async fn key_filters() -> Outcome {
    let t = topic("filters");
    let p = producer(&client().await?, &t).await?;
    let (mut ka, mut a) = consumer_with(&client().await?, &t, "a", SubType::KeyShared, &["eu-*"]).await?;
    let (mut kb, mut b) = consumer_with(&client().await?, &t, "b", SubType::KeyShared, &["us-?"]).await?;
    sleep(ATTACHED).await;
    for _ in 0..10 {
        for key in ["eu-west", "us-1", "us-22"] {
            send_key(&p, key, key).await?;
        }
    }
    for _ in 0..10 {
        let m = next(&mut a, 10.0).await?;
        check!(m.routing_key.as_deref() == Some("eu-west"), "a got {:?}", m.routing_key);
        ack(&mut ka, &m).await?;
        let m = next(&mut b, 10.0).await?;
        check!(m.routing_key.as_deref() == Some("us-1"), "b got {:?}", m.routing_key);
        ack(&mut kb, &m).await?;
    }
    none(&mut a, 0.1).await?;
    none(&mut b, 0.1).await
}

pub async fn nack() -> Outcome {
    let c = client().await?;
    for (n, kind) in [SubType::Exclusive, SubType::Shared, SubType::KeyShared].into_iter().enumerate() {
        let t = topic(&format!("nack{n}"));
        let p = producer(&c, &t).await?;
        let (mut k, mut messages) = consumer(&c, &t, "c", kind).await?;
        send(&p, b"again".to_vec()).await?;
        let first = next(&mut messages, 5.0).await?;
        within(10.0, "nack", k.nack(&first, Some(0), Some("not now".into()))).await?;
        let second = next(&mut messages, 6.0).await?;
        check!(second.msg_id.topic_offset == first.msg_id.topic_offset, "other message {second:?}");
        check!(second.payload == first.payload, "other payload {second:?}");
        ack(&mut k, &second).await?;
        none(&mut messages, 0.1).await?;
        k.close().await;
    }
    Ok(())
}

pub async fn large() -> Outcome {
    let (c, t) = (client().await?, topic("large"));
    let p = producer(&c, &t).await?;
    let (mut k, mut messages) = consumer(&c, &t, "c", SubType::Exclusive).await?;
    for size in [1 << 20, 0, 65535, 65536, 16384, 16379, 3 << 20] {
        let data: Vec<u8> = (0..size).map(|i: usize| (i * 7 + (i >> 8)) as u8).collect();
        send(&p, data.clone()).await?;
        let m = next(&mut messages, 20.0).await?;
        check!(m.payload == data, "payload of {size} differs");
        ack(&mut k, &m).await?;
    }
    k.close().await;
    Ok(())
}

pub async fn too_large() -> Outcome {
    let (c, t) = (client().await?, topic("too-large"));
    let p = producer(&c, &t).await?;
    let (mut k, mut messages) = consumer(&c, &t, "c", SubType::Exclusive).await?;
    for size in [(4 << 20) + 1, 5 << 20, 20 << 20] {
        let answer = timeout(secs(20.0), p.send(vec![0; size], None)).await;
        let answer = answer.map_err(|_| format!("{size} bytes: send hangs, no answer after 20 s"))?;
        check!(answer.is_err(), "{size} bytes were accepted");
    }
    send(&p, b"small".to_vec()).await?;
    let m = next(&mut messages, 5.0).await?;
    check!(m.payload == "small" && m.msg_id.topic_offset == 0, "got {:?}", m.msg_id);
    ack(&mut k, &m).await?;
    k.close().await;
    Ok(())
}

pub async fn first_message() -> Outcome {
    let t = topic("first");
    let p = producer(&client().await?, &t).await?;
    let (mut k, mut messages) = consumer(&client().await?, &t, "c", SubType::Exclusive).await?;
    none(&mut messages, 2.0).await?;
    send(&p, b"first".to_vec()).await?;
    let m = next(&mut messages, 1.0).await?;
    ack(&mut k, &m).await?;
    k.close().await;
    Ok(())
}

/// The client holds its consumer's lock until its stream has response headers, and close() waits for that lock.
pub async fn close_idle() -> Outcome {
    let (c, t) = (client().await?, topic("close"));
    let _p = producer(&c, &t).await?;
    let (mut k, _messages) = consumer(&c, &t, "c", SubType::Exclusive).await?;
    sleep(ATTACHED).await;
    timeout(secs(5.0), k.close()).await.map_err(|_| "close() hangs: no response headers yet".to_string())
}

pub async fn schema() -> Outcome {
    let (c, t) = (client().await?, topic("schema"));
    let subject = format!("rust-subject-{}", stamp());
    let definition = r#"{"type":"object","properties":{"msg":{"type":"string"}},"required":["msg"]}"#;
    let registry = c.schema();
    let registration = registry.register_schema(&subject).with_type(SchemaType::JsonSchema);
    let id = registration.with_schema_data(definition.as_bytes()).execute().await.map_err(text)?;
    let latest = registry.get_latest_schema(&subject).await.map_err(text)?;
    check!(latest.schema_id == id && latest.version == 1, "latest {latest:?}");
    check!(latest.schema_definition == definition.as_bytes(), "latest {latest:?}");
    let p = producer_with(&c, &t, |builder| builder.with_schema_subject(&subject)).await?;
    let (mut k, mut messages) = consumer(&c, &t, "c", SubType::Exclusive).await?;
    send(&p, br#"{"msg":"hello"}"#.to_vec()).await?;
    let m = next(&mut messages, 5.0).await?;
    check!(m.schema_id == Some(id) && m.schema_version == Some(1), "schema {m:?}");
    ack(&mut k, &m).await?;
    let unknown = registry.get_latest_schema(&format!("{subject}-unknown")).await;
    check!(matches!(&unknown, Err(e) if e.to_string().contains("not found")), "unknown subject {unknown:?}");
    k.close().await;
    Ok(())
}

pub async fn reopen() -> Outcome {
    let t = topic("reopen");
    let p = producer(&client().await?, &t).await?;
    let (mut k, mut messages) = consumer(&client().await?, &t, "c", SubType::Exclusive).await?;
    for i in 0..5 {
        send(&p, i.to_string().into_bytes()).await?;
    }
    for i in 0..5 {
        let m = next(&mut messages, 5.0).await?;
        if i < 2 {
            ack(&mut k, &m).await?;
        }
    }
    k.close().await;
    let (mut k, mut messages) = consumer(&client().await?, &t, "c", SubType::Exclusive).await?;
    for i in 2..5 {
        let m = next(&mut messages, 5.0).await?;
        check!(m.payload == i.to_string().as_bytes(), "payload {:?} at {i}", m.payload);
        ack(&mut k, &m).await?;
    }
    none(&mut messages, 0.1).await?;
    k.close().await;
    Ok(())
}

async fn one_of_many(c: danube_client::DanubeClient, n: usize) -> Outcome {
    let t = topic(&format!("many{n}"));
    let p = producer(&c, &t).await?;
    let (mut k, mut messages) = consumer(&c, &t, "c", SubType::Exclusive).await?;
    let sending = tokio::spawn(async move {
        for i in 0..50u8 {
            p.send(vec![i; 3000], None).await.map_err(text)?;
        }
        Ok::<(), String>(())
    });
    for i in 0..50u8 {
        let m = next(&mut messages, 30.0).await.map_err(|why| format!("topic {n} at {i}: {why}"))?;
        check!(m.payload == vec![i; 3000], "topic {n}: payload at {i}");
        ack(&mut k, &m).await?;
    }
    sending.await.map_err(text)??;
    k.close().await;
    Ok(())
}

pub async fn many() -> Outcome {
    let c = client().await?;
    let all: Vec<_> = (0..60).map(|n| tokio::spawn(one_of_many(c.clone(), n))).collect();
    for one in all {
        one.await.map_err(text)??;
    }
    Ok(())
}
