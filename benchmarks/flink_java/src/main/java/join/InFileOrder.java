package join;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Comparator;
import java.util.Deque;
import java.util.List;
import java.util.Optional;
import org.apache.flink.connector.file.src.FileSourceSplit;
import org.apache.flink.connector.file.src.assigners.FileSplitAssigner;

/**
 * Hands out splits by their files' names and their places in them. Flink's own assigners do not keep the order, and a
 * bounded disorder means nothing where files are read out of order: most rows would be late.
 */
public class InFileOrder implements FileSplitAssigner {
  private final Deque<FileSourceSplit> splits;

  public InFileOrder(Collection<FileSourceSplit> all) {
    splits = sorted(all);
  }

  @Override
  public Optional<FileSourceSplit> getNext(String host) {
    return Optional.ofNullable(splits.poll());
  }

  @Override
  public void addSplits(Collection<FileSourceSplit> more) {
    List<FileSourceSplit> all = new ArrayList<>(splits);
    all.addAll(more);
    splits.clear();
    splits.addAll(sorted(all));
  }

  @Override
  public Collection<FileSourceSplit> remainingSplits() {
    return new ArrayList<>(splits);
  }

  private static Deque<FileSourceSplit> sorted(Collection<FileSourceSplit> splits) {
    List<FileSourceSplit> list = new ArrayList<>(splits);
    list.sort(
        Comparator.comparing((FileSourceSplit split) -> split.path().toString())
            .thenComparingLong(FileSourceSplit::offset));
    return new ArrayDeque<>(list);
  }
}
