import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** The official Java client against a broker: Driver URL [SCENARIO…]. One line tells of each scenario (../README.md). */
final class Driver {
    static final int SCENARIO_MAX_S = 90;

    interface Scenario {
        void run() throws Exception;
    }

    static Map<String, Scenario> scenarios() {
        Map<String, Scenario> all = new LinkedHashMap<>();
        all.put("exclusive", Scenarios::exclusive);
        all.put("shared", Scenarios::shared);
        all.put("partitions", Scenarios::partitions);
        all.put("failover", Scenarios::failover);
        all.put("large", Scenarios::large);
        all.put("too-large", Scenarios::tooLarge);
        all.put("first-message", Scenarios::firstMessage);
        all.put("schema", Scenarios::schema);
        all.put("reopen", Scenarios::reopen);
        all.put("many", Scenarios::many);
        all.put("restart-kill", () -> Restart.run("kill"));
        all.put("restart-term", () -> Restart.run("term"));
        return all;
    }

    public static void main(String[] arguments) throws Exception {
        Talk.url = arguments[0];
        List<String> wanted = List.of(arguments).subList(1, arguments.length);
        boolean failed = false;
        for (var one : scenarios().entrySet()) {
            if (!wanted.isEmpty() && !wanted.contains(one.getKey())) continue;
            long began = System.nanoTime();
            String why = outcome(one.getValue());
            double took = (System.nanoTime() - began) / 1e9;
            if (why == null) {
                Talk.say("ok %s (%.1f s)", one.getKey(), took);
            } else {
                failed = true;
                Talk.say("FAIL %s: %s (%.1f s)", one.getKey(), why, took);
            }
        }
        System.exit(failed ? 1 : 0); // what a scenario left running ends with it
    }

    /** What a scenario threw, with its causes; null when it went well. */
    static String outcome(Scenario scenario) throws Exception {
        CompletableFuture<String> done = new CompletableFuture<>();
        Thread.ofPlatform().daemon().start(() -> {
            try {
                scenario.run();
                done.complete(null);
            } catch (Throwable thrown) {
                StringBuilder text = new StringBuilder(thrown.toString());
                for (Throwable cause = thrown.getCause(); cause != null; cause = cause.getCause()) {
                    text.append(" <- ").append(cause);
                }
                done.complete(text.toString());
            }
        });
        try {
            return done.get(SCENARIO_MAX_S, TimeUnit.SECONDS);
        } catch (TimeoutException late) {
            return "no end after " + SCENARIO_MAX_S + " s";
        }
    }
}
