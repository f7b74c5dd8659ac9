package join;

/** A customer's record from a time on, which is in epoch microseconds. */
public class Version {
  public long customerId;
  public long eventTime;
  public String tier;
  public double credit;
}
