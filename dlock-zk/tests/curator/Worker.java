import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;

/**
 * A service that takes a lock by Apache Curator, beside others that take it by dlock.
 *
 * <p>Worker SERVERS PATH SESSION_MS FOLDER ROUNDS: so many times it acquires the mutex, works, and releases it. The work is the same that the
 * test does: it is alone, or the file `inside` is there already; then a line in `ledger` says who was here.
 *
 * <p>Worker SERVERS PATH SESSION_MS FOLDER hold: it acquires, says so by the file `held`, and waits to be killed.
 *
 * <p>Ends with 0 if all went well, 3 if somebody else was inside, 1 with a trace for anything else.
 */
public final class Worker {
    public static void main(String[] args) throws Exception {
        int session = Integer.parseInt(args[2]);
        Path folder = Path.of(args[3]);
        CuratorFramework client =
                CuratorFrameworkFactory.newClient(args[0], session, 10_000, new RetryOneTime(100));
        client.start();
        InterProcessMutex mutex = new InterProcessMutex(client, args[1]);
        if (args[4].equals("hold")) {
            acquire(mutex);
            Files.createFile(folder.resolve("held"));
            Thread.sleep(Long.MAX_VALUE);
        }
        int rounds = Integer.parseInt(args[4]);
        for (int n = 0; n < rounds; n++) {
            acquire(mutex);
            try {
                work(folder, n);
            } finally {
                mutex.release();
            }
        }
        client.close();
    }

    private static void acquire(InterProcessMutex mutex) throws Exception {
        if (!mutex.acquire(60, TimeUnit.SECONDS)) {
            throw new IllegalStateException("not acquired within a minute");
        }
    }

    private static void work(Path folder, int n) throws Exception {
        Path inside = folder.resolve("inside");
        try {
            Files.createFile(inside);
        } catch (FileAlreadyExistsException e) {
            System.err.println("somebody else is inside in round " + n);
            System.exit(3);
        }
        byte[] line = ("curator " + n + "\n").getBytes(StandardCharsets.UTF_8);
        Files.write(folder.resolve("ledger"), line, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        Files.delete(inside);
    }
}
