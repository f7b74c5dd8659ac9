package join;

import java.time.Duration;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.connector.file.sink.FileSink;
import org.apache.flink.connector.file.src.FileSource;
import org.apache.flink.connector.file.src.FileSourceSplit;
import org.apache.flink.core.fs.Path;
import org.apache.flink.formats.parquet.ParquetColumnarRowInputFormat;
import org.apache.flink.formats.parquet.row.ParquetRowDataBuilder;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.filesystem.OutputFileConfig;
import org.apache.flink.streaming.api.functions.sink.filesystem.bucketassigners.BasePathBucketAssigner;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.runtime.typeutils.InternalTypeInfo;
import org.apache.flink.table.types.logical.BigIntType;
import org.apache.flink.table.types.logical.DoubleType;
import org.apache.flink.table.types.logical.LogicalType;
import org.apache.flink.table.types.logical.RowType;
import org.apache.flink.table.types.logical.VarCharType;
import org.apache.hadoop.conf.Configuration;

/** The parquet files: two inputs, each read by one reader in the order of its files, and the result. */
public final class Tables {
  private static final LogicalType LONG = new BigIntType();
  private static final LogicalType KEY = new BigIntType(false);
  private static final LogicalType DOUBLE = new DoubleType();
  private static final LogicalType TEXT = VarCharType.STRING_TYPE;
  private static final Duration DISORDER = Duration.ofSeconds(5);
  private static final int ROWS_AT_ONCE = 2048;

  /** Event times are read and written as epoch microseconds. */
  static final RowType TRADES =
      RowType.of(
          new LogicalType[] {LONG, LONG, LONG, DOUBLE, TEXT},
          new String[] {"trade_id", "customer_id", "event_time", "amount", "symbol"});

  static final RowType CUSTOMERS =
      RowType.of(
          new LogicalType[] {KEY, LONG, TEXT, DOUBLE},
          new String[] {"customer_id", "event_time", "tier", "credit"});

  static final RowType JOINED =
      RowType.of(
          new LogicalType[] {LONG, LONG, LONG, DOUBLE, TEXT, LONG, TEXT, DOUBLE},
          new String[] {
            "trade_id", "customer_id", "event_time", "amount", "symbol", "customers_event_time", "tier", "credit"
          });

  private Tables() {}

  /** Reads a folder; nothing is late, as one reader takes its files one after the other. */
  static DataStream<RowData> read(StreamExecutionEnvironment env, String folder, RowType type) {
    var format =
        new ParquetColumnarRowInputFormat<FileSourceSplit>(
            new Configuration(), type, InternalTypeInfo.of(type), ROWS_AT_ONCE, true, true);
    FileSource<RowData> source =
        FileSource.forBulkFileFormat(format, new Path(folder)).setSplitAssigner(InFileOrder::new).build();
    int time = type.getFieldIndex("event_time");
    WatermarkStrategy<RowData> watermarks =
        WatermarkStrategy.<RowData>forBoundedOutOfOrderness(DISORDER)
            .withTimestampAssigner((row, before) -> row.getLong(time) / 1000);
    return env.fromSource(source, watermarks, folder).setParallelism(1);
  }

  /** Writes the result, compressed as Spark does it. */
  public static void write(DataStream<RowData> joined, String folder, RowType type) {
    Configuration configuration = new Configuration();
    configuration.set("parquet.compression", "SNAPPY");
    var writers = ParquetRowDataBuilder.createWriterFactory(type, configuration, true);
    joined.sinkTo(
        FileSink.forBulkFormat(new Path(folder), writers)
            .withBucketAssigner(new BasePathBucketAssigner<>())
            .withOutputFileConfig(OutputFileConfig.builder().withPartSuffix(".parquet").build())
            .build());
  }
}
