"""What a query keeps on disk: its identity, lease, manifests, snapshots and progress."""
