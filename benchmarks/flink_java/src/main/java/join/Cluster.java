package join;

import org.apache.flink.configuration.Configuration;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/** Runs a job on a cluster of two slots in this process, and prints how long it took without the cluster's start. */
public final class Cluster {
  public static final int SLOTS = 2;

  private Cluster() {}

  public static void run(StreamExecutionEnvironment env, Configuration configuration) throws Exception {
    var places =
        new MiniClusterConfiguration.Builder()
            .setConfiguration(configuration)
            .setNumTaskManagers(1)
            .setNumSlotsPerTaskManager(SLOTS)
            .build();
    try (MiniCluster cluster = new MiniCluster(places)) {
      cluster.start();
      System.out.println("{\"event\": \"started\"}");
      long started = System.nanoTime();
      cluster.executeJobBlocking(env.getStreamGraph().getJobGraph());
      double seconds = (System.nanoTime() - started) / 1e9;
      System.out.println("{\"event\": \"finished\", \"seconds\": " + seconds + "}");
    }
  }
}
