"""The local runner of the operator: a plan and batches in; rows, states and reports out, in this process."""
