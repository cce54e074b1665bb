import java.util.Arrays;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;

/**
 * Apache Curator's InterProcessMutex, measured. Bench SERVERS PATH SESSION_MS TASKS SESSIONS WARM_MS MILLIS: so many threads take the mutex again and
 * again, over so many sessions. Prints the number of cycles, and the middle of how long a cycle took (one thread) or the mutex went from one thread to another
 * (several), in nanoseconds.
 */
public final class Bench {
    private static volatile long starts;
    private static volatile long ends;
    private static volatile long released;
    private static volatile int before = -1;
    private static final AtomicLong cycles = new AtomicLong();
    private static final ConcurrentLinkedQueue<Long> times = new ConcurrentLinkedQueue<>();

    public static void main(String[] args) throws Exception {
        int tasks = Integer.parseInt(args[3]);
        CuratorFramework[] clients = new CuratorFramework[Integer.parseInt(args[4])];
        for (int n = 0; n < clients.length; n++) {
            clients[n] = CuratorFrameworkFactory.newClient(
                    args[0], Integer.parseInt(args[2]), 15_000, new RetryOneTime(100));
            clients[n].start();
            clients[n].blockUntilConnected();
        }
        starts = System.nanoTime() + Long.parseLong(args[5]) * 1_000_000;
        ends = starts + Long.parseLong(args[6]) * 1_000_000;
        Thread[] threads = new Thread[tasks];
        for (int n = 0; n < tasks; n++) {
            int me = n;
            InterProcessMutex mutex = new InterProcessMutex(clients[n % clients.length], args[1]);
            threads[n] = new Thread(() -> run(mutex, me, tasks == 1));
            threads[n].start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        long[] all = times.stream().mapToLong(Long::longValue).toArray();
        Arrays.sort(all);
        System.out.println(cycles.get() + " " + (all.length == 0 ? 0 : all[all.length / 2]));
        for (CuratorFramework client : clients) {
            client.close();
        }
    }

    private static void run(InterProcessMutex mutex, int me, boolean alone) {
        try {
            while (System.nanoTime() < ends) {
                long asked = System.nanoTime();
                mutex.acquire();
                long now = System.nanoTime();
                boolean counts = now >= starts && now < ends;
                if (counts) {
                    cycles.incrementAndGet();
                    if (!alone && before >= 0 && before != me) {
                        times.add(now - released);
                    }
                }
                before = me;
                released = System.nanoTime();
                mutex.release();
                if (counts && alone) {
                    times.add(System.nanoTime() - asked);
                }
            }
        } catch (Exception e) {
            e.printStackTrace();
            System.exit(1);
        }
    }
}
