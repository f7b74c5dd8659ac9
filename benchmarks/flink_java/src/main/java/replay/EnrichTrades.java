package replay;

import java.util.ArrayList;
import java.util.Comparator;
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
 * Each trade with the customer in force, exact to the microsecond: within a timer's millisecond trades and versions are
 * taken by their times, and versions of one time by their places in the topic.
 */
public class EnrichTrades extends KeyedCoProcessFunction<Long, Trade, Version, RowData> {
  private static final Comparator<Version> BY_TIME =
      Comparator.comparingLong((Version version) -> version.micros)
          .thenComparingInt(version -> version.partition)
          .thenComparingLong(version -> version.offset);

  private transient ValueState<Version> inForce;
  private transient MapState<Long, List<Version>> versions;
  private transient MapState<Long, List<Trade>> waiting;

  @Override
  public void open(OpenContext context) {
    var version = Types.POJO(Version.class);
    var list = Types.LIST(version);
    inForce = getRuntimeContext().getState(new ValueStateDescriptor<>("in force", version));
    versions = getRuntimeContext().getMapState(new MapStateDescriptor<>("versions", Types.LONG, list));
    waiting =
        getRuntimeContext()
            .getMapState(new MapStateDescriptor<>("waiting", Types.LONG, Types.LIST(Types.POJO(Trade.class))));
  }

  @Override
  public void processElement1(Trade trade, Context context, Collector<RowData> out) throws Exception {
    add(waiting, trade, context);
  }

  @Override
  public void processElement2(Version version, Context context, Collector<RowData> out) throws Exception {
    add(versions, version, context);
  }

  @Override
  public void onTimer(long at, OnTimerContext context, Collector<RowData> out) throws Exception {
    Version current = inForce.value();
    List<Version> newer = versions.get(at);
    int next = 0;
    if (newer != null) {
      newer.sort(BY_TIME);
      versions.remove(at);
    }
    List<Trade> trades = waiting.get(at);
    if (trades != null) {
      trades.sort(Comparator.comparingLong(trade -> trade.micros));
      waiting.remove(at);
      for (Trade trade : trades) {
        while (newer != null && next < newer.size() && newer.get(next).micros <= trade.micros) {
          current = newer.get(next++);
        }
        out.collect(joined(trade, current));
      }
    }
    if (newer != null) {
      inForce.update(newer.get(newer.size() - 1));
    }
  }

  private static <T> void add(MapState<Long, List<T>> state, T element, KeyedCoProcessFunction<?, ?, ?, ?>.Context context)
      throws Exception {
    long at = context.timestamp();
    List<T> same = state.get(at);
    if (same == null) {
      same = new ArrayList<>(1);
      context.timerService().registerEventTimeTimer(at);
    }
    same.add(element);
    state.put(at, same);
  }

  private static RowData joined(Trade trade, Version customer) {
    GenericRowData row = new GenericRowData(11);
    row.setField(0, trade.tradeId);
    row.setField(1, trade.customerId);
    row.setField(2, trade.micros);
    row.setField(3, trade.amount);
    row.setField(4, trade.partition);
    row.setField(5, trade.offset);
    if (customer != null) {
      row.setField(6, customer.versionId);
      row.setField(7, customer.micros);
      row.setField(8, StringData.fromString(customer.tier));
      row.setField(9, customer.partition);
      row.setField(10, customer.offset);
    }
    return row;
  }
}
