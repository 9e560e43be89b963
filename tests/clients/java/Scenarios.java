import com.danubemessaging.client.DanubeClient;
import com.danubemessaging.client.Producer;
import com.danubemessaging.client.SchemaRegistryClient;
import com.danubemessaging.client.SubType;
import com.danubemessaging.client.model.StreamMessage;
import com.danubemessaging.client.schema.SchemaInfo;
import com.danubemessaging.client.schema.SchemaRegistration;
import com.danubemessaging.client.schema.SchemaType;
import com.danubemessaging.client.schema.ValidationPolicy;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

/** What one broker that stays up owes the client. */
final class Scenarios {
    static void exclusive() throws Exception {
        DanubeClient c = Talk.client();
        String t = Talk.topic("exclusive");
        Producer p = Talk.producer(c, t);
        try (var r = new Talk.Reader(c, t, "c", SubType.EXCLUSIVE)) {
            Thread.startVirtualThread(() -> {
                for (int i = 0; i < 1000; i++) p.send(("message " + i).getBytes(), Map.of("n", "" + i, "kind", "x"));
            });
            for (int i = 0; i < 1000; i++) {
                StreamMessage m = r.next(20);
                Talk.check(Talk.text(m).equals("message " + i), "payload %s at %d", Talk.text(m), i);
                Talk.check(Talk.offset(m) == i, "offset %d at %d", Talk.offset(m), i);
                Talk.check(m.attributes().equals(Map.of("n", "" + i, "kind", "x")), "attributes %s", m.attributes());
                Talk.check(m.producerName().equals("p") && m.publishTime() > 0 && m.messageId().topicName().equals(t), "fields %s", m);
                r.ack(m);
            }
            r.none(0.2);
        }
    }

    static void shared() throws Exception {
        int total = 400;
        String t = Talk.topic("shared");
        Producer p = Talk.producer(Talk.client(), t);
        ExecutorService pool = Executors.newVirtualThreadPerTaskExecutor();
        try (var a = new Talk.Reader(Talk.client(), t, "a", SubType.SHARED); var b = new Talk.Reader(Talk.client(), t, "b", SubType.SHARED)) {
            Thread.sleep(Talk.ATTACHED_MS);
            Set<Long> seen = ConcurrentHashMap.newKeySet();
            AtomicInteger taken = new AtomicInteger();
            List<Future<Integer>> shares = new ArrayList<>();
            for (var reader : List.of(a, b)) {
                shares.add(pool.submit(() -> {
                    int share = 0;
                    while (taken.get() < total) {
                        Object got = reader.queue.poll(100, TimeUnit.MILLISECONDS);
                        if (got == null) continue;
                        StreamMessage m = (StreamMessage) got;
                        reader.ack(m);
                        Talk.check(seen.add(Talk.offset(m)), "offset %d twice", Talk.offset(m));
                        share++;
                        taken.incrementAndGet();
                    }
                    return share;
                }));
            }
            for (int i = 0; i < total; i++) Talk.send(p, i);
            for (var share : shares) Talk.check(share.get(30, TimeUnit.SECONDS) > 0, "one of two got nothing");
            a.none(0.2);
            b.none(0.1);
        } finally {
            pool.shutdownNow();
        }
    }

    static void partitions() throws Exception {
        DanubeClient c = Talk.client();
        String t = Talk.topic("partitions");
        Producer p = Talk.created(Talk.building(c, t).withPartitions(3));
        try (var r = new Talk.Reader(c, t, "c", SubType.EXCLUSIVE)) {
            for (int i = 0; i < 300; i++) Talk.send(p, i);
            Map<String, List<Long>> offsets = new TreeMap<>();
            Set<String> seen = new HashSet<>();
            for (int i = 0; i < 300; i++) {
                StreamMessage m = r.next(20);
                r.ack(m);
                offsets.computeIfAbsent(m.messageId().topicName(), name -> new ArrayList<>()).add(Talk.offset(m));
                seen.add(Talk.text(m));
            }
            Talk.check(seen.size() == 300 && offsets.size() == 3, "%d messages, %d partitions", seen.size(), offsets.size());
            for (var one : offsets.entrySet()) {
                for (int i = 0; i < 100; i++) Talk.check(one.getValue().get(i) == i, "%s: %s", one.getKey(), one.getValue());
            }
        }
    }

    static void failover() throws Exception {
        String t = Talk.topic("failover");
        Producer p = Talk.producer(Talk.client(), t);
        try (var a = new Talk.Reader(Talk.client(), t, "a", SubType.FAILOVER)) {
            Thread.sleep(Talk.ATTACHED_MS);
            try (var b = new Talk.Reader(Talk.client(), t, "b", SubType.FAILOVER)) {
                Thread.sleep(Talk.ATTACHED_MS);
                for (int i = 0; i < 5; i++) Talk.send(p, i);
                for (int i = 0; i < 5; i++) {
                    StreamMessage m = a.next(5);
                    if (i < 2) a.ack(m);
                }
                b.none(0.2);
                a.close();
                for (int i = 2; i < 5; i++) {
                    StreamMessage m = b.next(15);
                    Talk.check(Talk.text(m).equals("" + i), "payload %s at %d", Talk.text(m), i);
                    b.ack(m);
                }
            }
        }
    }

    static void large() throws Exception {
        DanubeClient c = Talk.client();
        String t = Talk.topic("large");
        Producer p = Talk.producer(c, t);
        try (var r = new Talk.Reader(c, t, "c", SubType.EXCLUSIVE)) {
            for (int size : new int[] {1 << 20, 0, 65535, 65536, 16384, 16379, 3 << 20}) {
                byte[] data = new byte[size];
                for (int i = 0; i < size; i++) data[i] = (byte) (i * 7 + (i >> 8));
                p.send(data, Map.of());
                StreamMessage m = r.next(20);
                Talk.check(Arrays.equals(m.payload(), data), "payload of %d differs", size);
                r.ack(m);
            }
        }
    }

    static void tooLarge() throws Exception {
        DanubeClient c = Talk.client();
        String t = Talk.topic("too-large");
        Producer p = Talk.producer(c, t);
        try (var r = new Talk.Reader(c, t, "c", SubType.EXCLUSIVE)) {
            for (int size : new int[] {(4 << 20) + 1, 5 << 20, 20 << 20}) Talk.refused(p, new byte[size]);
            Talk.send(p, "small");
            StreamMessage m = r.next(5);
            Talk.check(Talk.text(m).equals("small") && Talk.offset(m) == 0, "got %s", m);
            r.ack(m);
        }
    }

    static void firstMessage() throws Exception {
        String t = Talk.topic("first");
        Producer p = Talk.producer(Talk.client(), t);
        try (var r = new Talk.Reader(Talk.client(), t, "c", SubType.EXCLUSIVE)) {
            r.none(2);
            Talk.send(p, "first");
            r.ack(r.next(1));
        }
    }

    static void schema() throws Exception {
        DanubeClient c = Talk.client();
        String t = Talk.topic("schema");
        String subject = "java-subject-" + Talk.STAMP;
        String definition = "{\"type\":\"object\",\"properties\":{\"msg\":{\"type\":\"string\"}},\"required\":[\"msg\"]}";
        SchemaRegistryClient registry = c.newSchemaRegistry();
        SchemaRegistration made = registry.registerSchema(registry.newRegistration().withSubject(subject)
            .withSchemaType(SchemaType.JSON_SCHEMA).withSchemaDefinition(definition.getBytes()).withCreatedBy("me").withDescription("d"));
        SchemaInfo latest = registry.getLatestSchema(subject);
        Talk.check(latest.schemaId() == made.schemaId() && latest.version() == 1, "latest %s", latest);
        Talk.check(new String(latest.schemaDefinition()).equals(definition), "latest %s", latest);
        Producer p = Talk.created(Talk.building(c, t).withSchemaLatest(subject));
        try (var r = new Talk.Reader(c, t, "c", SubType.EXCLUSIVE)) {
            Talk.send(p, "{\"msg\":\"hello\"}");
            StreamMessage m = r.next(5);
            Talk.check(m.schemaId() == made.schemaId() && m.schemaVersion() == 1, "schema %s %s", m.schemaId(), m.schemaVersion());
            r.ack(m);
            registry.configureTopicSchema(t, subject, ValidationPolicy.ENFORCE, true);
            Talk.refused(p, "{\"msg\":7}".getBytes());
        }
    }

    static void reopen() throws Exception {
        String t = Talk.topic("reopen");
        Producer p = Talk.producer(Talk.client(), t);
        try (var r = new Talk.Reader(Talk.client(), t, "c", SubType.EXCLUSIVE)) {
            for (int i = 0; i < 5; i++) Talk.send(p, i);
            for (int i = 0; i < 5; i++) {
                StreamMessage m = r.next(5);
                if (i < 2) r.ack(m);
            }
        }
        try (var r = new Talk.Reader(Talk.client(), t, "c", SubType.EXCLUSIVE)) {
            for (int i = 2; i < 5; i++) {
                StreamMessage m = r.next(5);
                Talk.check(Talk.text(m).equals("" + i), "payload %s at %d", Talk.text(m), i);
                r.ack(m);
            }
            r.none(0.1);
        }
    }

    static void many() throws Exception {
        DanubeClient c = Talk.client();
        ExecutorService pool = Executors.newVirtualThreadPerTaskExecutor();
        List<Future<?>> all = new ArrayList<>();
        for (int n = 0; n < 60; n++) {
            String t = Talk.topic("many" + n);
            all.add(pool.submit(() -> oneOfMany(c, t, pool)));
        }
        for (var one : all) one.get(80, TimeUnit.SECONDS);
        pool.shutdownNow();
    }

    static Void oneOfMany(DanubeClient c, String t, ExecutorService pool) throws Exception {
        Producer p = Talk.producer(c, t);
        try (var r = new Talk.Reader(c, t, "c", SubType.EXCLUSIVE)) {
            Future<?> sending = pool.submit(() -> {
                for (int i = 0; i < 50; i++) p.send(filled(i), Map.of());
            });
            for (int i = 0; i < 50; i++) {
                StreamMessage m = r.next(30);
                Talk.check(Arrays.equals(m.payload(), filled(i)), "payload at %d", i);
                r.ack(m);
            }
            sending.get(30, TimeUnit.SECONDS);
        }
        return null;
    }

    static byte[] filled(int value) {
        byte[] data = new byte[3000];
        Arrays.fill(data, (byte) value);
        return data;
    }
}
