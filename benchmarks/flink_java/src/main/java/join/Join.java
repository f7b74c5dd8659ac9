package join;

import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.PipelineOptions;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.api.DataTypes;
import org.apache.flink.table.api.Schema;
import org.apache.flink.table.api.Table;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.runtime.typeutils.InternalTypeInfo;

/**
 * The join by Flink, on a cluster of two slots in this process: {@code java join.Join flink-java|flink-sql DATA WORK}.
 *
 * <p>State is on the heap, objects are reused and no checkpoints are taken: nothing is faster in Flink. The cluster's
 * start is not timed.
 */
public final class Join {
  private static final String TEMPORAL_JOIN =
      """
      SELECT t.trade_id, t.customer_id, t.event_time, t.amount, t.symbol,
             c.event_time AS customers_event_time, c.tier, c.credit
      FROM trades AS t LEFT JOIN customers FOR SYSTEM_TIME AS OF t.rowtime AS c ON t.customer_id = c.customer_id
      """;

  private Join() {}

  public static void main(String[] arguments) throws Exception {
    String data = arguments[1];
    Configuration configuration = new Configuration();
    configuration.set(PipelineOptions.OBJECT_REUSE, true);
    var env = StreamExecutionEnvironment.getExecutionEnvironment(configuration);
    env.setParallelism(Cluster.SLOTS);
    var trades = Tables.read(env, data + "/trades", Tables.TRADES);
    var customers = Tables.read(env, data + "/customers", Tables.CUSTOMERS);
    var joined = arguments[0].equals("flink-sql") ? bySql(env, trades, customers) : byFunction(trades, customers);
    Tables.write(joined, arguments[2] + "/out", Tables.JOINED);
    Cluster.run(env, configuration);
  }

  private static DataStream<RowData> byFunction(DataStream<RowData> trades, DataStream<RowData> customers) {
    var left = trades.map(Join::trade).returns(Types.POJO(Trade.class)).setParallelism(1);
    var right = customers.map(Join::version).returns(Types.POJO(Version.class)).setParallelism(1);
    TypeInformation<RowData> type = InternalTypeInfo.of(Tables.JOINED);
    return left.keyBy(trade -> trade.customerId)
        .connect(right.keyBy(version -> version.customerId))
        .process(new EnrichTrades(), type);
  }

  private static DataStream<RowData> bySql(
      StreamExecutionEnvironment env, DataStream<RowData> trades, DataStream<RowData> customers) {
    var tables = StreamTableEnvironment.create(env);
    tables.createTemporaryView("trades", trades, withTime().build());
    tables.createTemporaryView("customers", customers, withTime().primaryKey("customer_id").build());
    Table joined = tables.sqlQuery(TEMPORAL_JOIN);
    return tables.toDataStream(joined, DataTypes.of(Tables.JOINED).bridgedTo(RowData.class));
  }

  /** Flink's tables take the streams' own timestamps and watermarks. */
  private static Schema.Builder withTime() {
    return Schema.newBuilder().columnByMetadata("rowtime", "TIMESTAMP_LTZ(3)").watermark("rowtime", "SOURCE_WATERMARK()");
  }

  private static Trade trade(RowData row) {
    Trade trade = new Trade();
    trade.tradeId = row.getLong(0);
    trade.customerId = row.getLong(1);
    trade.eventTime = row.getLong(2);
    trade.amount = row.getDouble(3);
    trade.symbol = row.getString(4).toString();
    return trade;
  }

  private static Version version(RowData row) {
    Version version = new Version();
    version.customerId = row.getLong(0);
    version.eventTime = row.getLong(1);
    version.tier = row.getString(2).toString();
    version.credit = row.getDouble(3);
    return version;
  }
}
