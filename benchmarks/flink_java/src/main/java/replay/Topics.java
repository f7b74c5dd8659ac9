package replay;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.ObjectReader;
import java.io.IOException;
import java.time.Duration;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import org.apache.flink.api.common.eventtime.SerializableTimestampAssigner;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.DeserializationSchema;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.util.Collector;
import org.apache.kafka.clients.consumer.ConsumerRecord;

/** The two topics, read from their begins to their present ends, with one watermark a partition. */
final class Topics {
  private static final Duration DISORDER = Duration.ofSeconds(5);

  private Topics() {}

  static DataStream<Trade> trades(StreamExecutionEnvironment env, String servers, String topic) {
    return read(env, servers, topic, new TradeOf(), (trade, before) -> Math.floorDiv(trade.micros, 1000L));
  }

  static DataStream<Version> versions(StreamExecutionEnvironment env, String servers, String topic) {
    return read(env, servers, topic, new VersionOf(), (version, before) -> Math.floorDiv(version.micros, 1000L));
  }

  /** Returns a time such as {@code 2026-03-02T00:00:00.000125Z} as epoch microseconds. */
  static long micros(String text) {
    return ChronoUnit.MICROS.between(Instant.EPOCH, Instant.parse(text));
  }

  private static <T> DataStream<T> read(
      StreamExecutionEnvironment env,
      String servers,
      String topic,
      KafkaRecordDeserializationSchema<T> decoder,
      SerializableTimestampAssigner<T> timestamp) {
    KafkaSource<T> source =
        KafkaSource.<T>builder()
            .setBootstrapServers(servers)
            .setTopics(topic)
            .setStartingOffsets(OffsetsInitializer.earliest())
            .setBounded(OffsetsInitializer.latest())
            .setDeserializer(decoder)
            .build();
    WatermarkStrategy<T> watermarks =
        WatermarkStrategy.<T>forBoundedOutOfOrderness(DISORDER).withTimestampAssigner(timestamp);
    return env.fromSource(source, watermarks, topic, decoder.getProducedType());
  }

  /** Decodes a record's JSON by Jackson. */
  private abstract static class Decoder<T> implements KafkaRecordDeserializationSchema<T> {
    private final Class<T> type;
    private transient ObjectReader reader;

    Decoder(Class<T> type) {
      this.type = type;
    }

    @Override
    public void open(DeserializationSchema.InitializationContext context) {
      reader = new ObjectMapper().readerFor(type);
    }

    @Override
    public void deserialize(ConsumerRecord<byte[], byte[]> record, Collector<T> out) throws IOException {
      T decoded = reader.readValue(record.value());
      place(decoded, record.partition(), record.offset());
      out.collect(decoded);
    }

    @Override
    public TypeInformation<T> getProducedType() {
      return Types.POJO(type);
    }

    abstract void place(T decoded, int partition, long offset);
  }

  private static final class TradeOf extends Decoder<Trade> {
    TradeOf() {
      super(Trade.class);
    }

    @Override
    void place(Trade trade, int partition, long offset) {
      trade.partition = partition;
      trade.offset = offset;
    }
  }

  private static final class VersionOf extends Decoder<Version> {
    VersionOf() {
      super(Version.class);
    }

    @Override
    void place(Version version, int partition, long offset) {
      version.partition = partition;
      version.offset = offset;
    }
  }
}
