package replay;

import com.fasterxml.jackson.annotation.JsonProperty;

/** A trade, as its record has it, and where the record is. */
public class Trade {
  @JsonProperty("trade_id")
  public long tradeId;

  @JsonProperty("customer_id")
  public long customerId;

  public double amount;
  public long micros;
  public int partition;
  public long offset;

  @JsonProperty("event_time")
  public void at(String text) {
    micros = Topics.micros(text);
  }
}
