package replay;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import join.Cluster;
import join.Tables;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.PipelineOptions;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.runtime.typeutils.InternalTypeInfo;
import org.apache.flink.table.types.logical.BigIntType;
import org.apache.flink.table.types.logical.DoubleType;
import org.apache.flink.table.types.logical.IntType;
import org.apache.flink.table.types.logical.LogicalType;
import org.apache.flink.table.types.logical.RowType;
import org.apache.flink.table.types.logical.VarCharType;

/**
 * The replay of two topics by Flink: {@code java replay.Replay JOB.json WORK}.
 *
 * <p>Sources are not aligned: alignment lets them go on once a second by so much event time as they may drift, which
 * would take most of an hour for three weeks. What drifts is buffered, on the heap. As in the join of files, objects are
 * reused, no checkpoints are taken, and the cluster's start is not timed.
 */
public final class Replay {
  private static final LogicalType LONG = new BigIntType();
  private static final LogicalType INT = new IntType();

  private static final RowType JOINED =
      RowType.of(
          new LogicalType[] {
            LONG, LONG, LONG, new DoubleType(), INT, LONG, LONG, LONG, VarCharType.STRING_TYPE, INT, LONG
          },
          new String[] {
            "trade_id",
            "customer_id",
            "micros",
            "amount",
            "partition",
            "offset",
            "version_id",
            "customers_micros",
            "tier",
            "partition_customer",
            "offset_customer"
          });

  private Replay() {}

  public static void main(String[] arguments) throws Exception {
    JsonNode job = new ObjectMapper().readTree(new File(arguments[0]));
    String servers = job.get("servers").asText();
    Configuration configuration = new Configuration();
    configuration.set(PipelineOptions.OBJECT_REUSE, true);
    var env = StreamExecutionEnvironment.getExecutionEnvironment(configuration);
    env.setParallelism(Cluster.SLOTS);
    var trades = Topics.trades(env, servers, job.get("topics").get(0).asText());
    var versions = Topics.versions(env, servers, job.get("topics").get(1).asText());
    var joined =
        trades
            .keyBy(trade -> trade.customerId)
            .connect(versions.keyBy(version -> version.customerId))
            .process(new EnrichTrades(), InternalTypeInfo.<RowData>of(JOINED));
    Tables.write(joined, arguments[1] + "/out", JOINED);
    Cluster.run(env, configuration);
  }
}
