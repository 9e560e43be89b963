import com.danubemessaging.client.Consumer;
import com.danubemessaging.client.DanubeClient;
import com.danubemessaging.client.DispatchStrategy;
import com.danubemessaging.client.Producer;
import com.danubemessaging.client.ProducerBuilder;
import com.danubemessaging.client.SubType;
import com.danubemessaging.client.model.StreamMessage;
import java.nio.charset.StandardCharsets;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Flow;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** The client's calls, each with a bound on its time. */
final class Talk {
    static final long STAMP = System.currentTimeMillis();
    /** The clients do not tell when their stream has reached the broker. */
    static final long ATTACHED_MS = 400;

    static String url;

    static String topic(String name) {
        return "/default/java-" + name + "-" + STAMP;
    }

    static void say(String format, Object... values) {
        System.out.println(String.format(Locale.ROOT, format, values));
    }

    static void check(boolean ok, String format, Object... values) {
        if (!ok) throw new AssertionError(String.format(Locale.ROOT, format, values));
    }

    static DanubeClient client() {
        return DanubeClient.builder().serviceUrl(url).build();
    }

    static ProducerBuilder building(DanubeClient client, String topic) {
        return client.newProducer().withTopic(topic).withName("p").withDispatchStrategy(DispatchStrategy.RELIABLE);
    }

    static Producer created(ProducerBuilder builder) {
        Producer made = builder.build();
        made.create();
        return made;
    }

    static Producer producer(DanubeClient client, String topic) {
        return created(building(client, topic));
    }

    static void send(Producer producer, Object text) {
        producer.send(text.toString().getBytes(StandardCharsets.UTF_8), Map.of());
    }

    /** Send what the broker must refuse, and in time. */
    static void refused(Producer producer, byte[] payload) throws Exception {
        try {
            producer.sendAsync(payload, Map.of()).get(20, TimeUnit.SECONDS);
            throw new AssertionError(payload.length + " bytes were accepted");
        } catch (TimeoutException late) {
            throw new AssertionError(payload.length + " bytes: send hangs, no answer after 20 s", late);
        } catch (ExecutionException expected) {
            check(expected.getCause() != null, "%s", expected);
        }
    }

    static String text(StreamMessage message) {
        return new String(message.payload(), StandardCharsets.UTF_8);
    }

    static long offset(StreamMessage message) {
        return message.messageId().topicOffset();
    }

    /** A consumer, and a queue of what it was given. */
    static final class Reader implements AutoCloseable {
        final Consumer consumer;
        final BlockingQueue<Object> queue = new LinkedBlockingQueue<>();
        final Map<Long, Long> arrived = new ConcurrentHashMap<>(); // the newest arrival of an offset

        Reader(DanubeClient client, String topic, String name, SubType kind) {
            consumer = client.newConsumer().withTopic(topic).withConsumerName(name).withSubscription("s").withSubscriptionType(kind)
                .withMaxRetries(300).withBaseBackoffMs(20).withMaxBackoffMs(200).build();
            // Before subscribe(), which starts to receive: the publisher drops what has no subscriber.
            consumer.receive().subscribe(new Flow.Subscriber<StreamMessage>() {
                @Override
                public void onSubscribe(Flow.Subscription subscription) {
                    subscription.request(Long.MAX_VALUE);
                }

                @Override
                public void onNext(StreamMessage message) {
                    arrived.put(offset(message), System.nanoTime());
                    queue.add(message);
                }

                @Override
                public void onError(Throwable thrown) {
                    queue.add(thrown);
                }

                @Override
                public void onComplete() {}
            });
            consumer.subscribe();
        }

        StreamMessage next(double seconds) throws Exception {
            Object got = queue.poll((long) (seconds * 1000), TimeUnit.MILLISECONDS);
            check(got != null, "no message within %.1f s", seconds);
            if (got instanceof Throwable thrown) throw new Exception("the receive loop has ended", thrown);
            return (StreamMessage) got;
        }

        void none(double seconds) throws Exception {
            Object got = queue.poll((long) (seconds * 1000), TimeUnit.MILLISECONDS);
            check(got == null, "unexpected %s", got);
        }

        void ack(StreamMessage message) {
            consumer.ack(message);
        }

        @Override
        public void close() {
            consumer.close();
        }
    }
}
