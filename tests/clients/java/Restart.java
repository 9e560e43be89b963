import com.danubemessaging.client.Producer;
import com.danubemessaging.client.SubType;
import com.danubemessaging.client.model.StreamMessage;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/** The broker goes and comes in the middle of 1500 sends. */
final class Restart {
    static final int TOTAL = 1500;
    static final BufferedReader IN = new BufferedReader(new InputStreamReader(System.in));

    static void run(String how) throws Exception {
        String t = Talk.topic("restart-" + how);
        Producer p = Talk.created(Talk.building(Talk.client(), t).withMaxRetries(300).withBaseBackoffMs(20).withMaxBackoffMs(200));
        try (var r = new Talk.Reader(Talk.client(), t, "c", SubType.EXCLUSIVE)) {
            CompletableFuture<Integer> sending = inBackground(() -> sendAll(p));
            CompletableFuture<String> back = null;
            Map<Long, String> stored = new HashMap<>();
            Set<String> values = new HashSet<>();
            Map<Long, Long> acked = new HashMap<>();
            int again = 0;
            int late = 0;
            int lost = 0;
            while (values.size() < TOTAL) {
                if (values.size() >= 300 && back == null) {
                    Talk.say("restart now %s", how);
                    back = inBackground(IN::readLine);
                }
                StreamMessage m = r.next(60);
                long offset = Talk.offset(m);
                String old = stored.put(offset, Talk.text(m));
                if (old != null) {
                    Talk.check(old.equals(Talk.text(m)), "offset %d was %s, is %s", offset, old, Talk.text(m));
                    again++;
                }
                values.add(Talk.text(m));
                try {
                    r.ack(m);
                    Long before = acked.putIfAbsent(offset, System.nanoTime());
                    if (before != null && r.arrived.get(offset) > before) late++;
                } catch (RuntimeException unanswered) {
                    lost++;
                }
            }
            int givenUp = sending.get(30, TimeUnit.SECONDS);
            back.get(60, TimeUnit.SECONDS);
            for (long offset = 0; offset < stored.size(); offset++) {
                Talk.check(stored.containsKey(offset), "offset %d is missing", offset);
            }
            Talk.say("  note %d stored for %d sent, %d redelivered (%d of them after an answered ack), %d acks unanswered, "
                + "%d sends given up by the client", stored.size(), TOTAL, again, late, lost, givenUp);
            Talk.check(how.equals("kill") || givenUp + lost == 0, "a broker that shuts down told the client a status that it does not retry");
        }
    }

    /** Send all; returns how often the client gave one up with a status that it does not retry. */
    static int sendAll(Producer p) throws InterruptedException {
        int givenUp = 0;
        for (int i = 0; i < TOTAL; i++) {
            while (true) {
                try {
                    Talk.send(p, i);
                    break;
                } catch (RuntimeException thrown) {
                    if (++givenUp > 100) throw thrown;
                    Thread.sleep(200); // an application's own pause before it tries again
                }
            }
            Thread.sleep(1); // a steady producer
        }
        return givenUp;
    }

    interface Work<T> {
        T run() throws Exception;
    }

    static <T> CompletableFuture<T> inBackground(Work<T> work) {
        CompletableFuture<T> done = new CompletableFuture<>();
        Thread.ofPlatform().daemon().start(() -> {
            try {
                done.complete(work.run());
            } catch (Exception thrown) {
                done.completeExceptionally(thrown);
            }
        });
        return done;
    }
}
