package join;

import java.util.ArrayList;
import java.util.List;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.MapState;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.streaming.api.functions.co.KeyedCoProcessFunction;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.StringData;
import org.apache.flink.util.Collector;

/**
 * Each trade with the customer in force. Both sides wait in states by their instants, each instant has a timer, and a
 * timer puts the version of its instant in force before it emits the trades: a few lookups a row, none of them a scan.
 */
public class EnrichTrades extends KeyedCoProcessFunction<Long, Trade, Version, RowData> {
  private transient ValueState<Version> inForce;
  private transient MapState<Long, Version> versions;
  private transient MapState<Long, List<Trade>> waiting;

  @Override
  public void open(OpenContext context) {
    var version = Types.POJO(Version.class);
    inForce = getRuntimeContext().getState(new ValueStateDescriptor<>("in force", version));
    versions = getRuntimeContext().getMapState(new MapStateDescriptor<>("versions", Types.LONG, version));
    waiting =
        getRuntimeContext()
            .getMapState(new MapStateDescriptor<>("waiting", Types.LONG, Types.LIST(Types.POJO(Trade.class))));
  }

  @Override
  public void processElement1(Trade trade, Context context, Collector<RowData> out) throws Exception {
    long at = context.timestamp();
    List<Trade> same = waiting.get(at);
    if (same == null) {
      same = new ArrayList<>(1);
      context.timerService().registerEventTimeTimer(at);
    }
    same.add(trade);
    waiting.put(at, same);
  }

  @Override
  public void processElement2(Version version, Context context, Collector<RowData> out) throws Exception {
    versions.put(context.timestamp(), version);
    context.timerService().registerEventTimeTimer(context.timestamp());
  }

  @Override
  public void onTimer(long at, OnTimerContext context, Collector<RowData> out) throws Exception {
    Version version = versions.get(at);
    if (version != null) {
      inForce.update(version);
      versions.remove(at);
    }
    List<Trade> trades = waiting.get(at);
    if (trades != null) {
      Version customer = inForce.value();
      for (Trade trade : trades) {
        out.collect(joined(trade, customer));
      }
      waiting.remove(at);
    }
  }

  private static RowData joined(Trade trade, Version customer) {
    GenericRowData row = new GenericRowData(8);
    row.setField(0, trade.tradeId);
    row.setField(1, trade.customerId);
    row.setField(2, trade.eventTime);
    row.setField(3, trade.amount);
    row.setField(4, StringData.fromString(trade.symbol));
    if (customer != null) {
      row.setField(5, customer.eventTime);
      row.setField(6, StringData.fromString(customer.tier));
      row.setField(7, customer.credit);
    }
    return row;
  }
}
