package join;

/** A trade; its event time in epoch microseconds. */
public class Trade {
  public long tradeId;
  public long customerId;
  public long eventTime;
  public double amount;
  public String symbol;
}
