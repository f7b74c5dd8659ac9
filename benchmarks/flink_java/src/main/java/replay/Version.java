package replay;

import com.fasterxml.jackson.annotation.JsonProperty;

/** A version of a customer, as its record has it, and where the record is. */
public class Version {
  @JsonProperty("version_id")
  public long versionId;

  @JsonProperty("customer_id")
  public long customerId;

  public String tier;
  public long micros;
  public int partition;
  public long offset;

  @JsonProperty("event_time")
  public void at(String text) {
    micros = Topics.micros(text);
  }
}
